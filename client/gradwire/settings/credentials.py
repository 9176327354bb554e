"""Credentials of a worker: the key that proves its identity, and the cipher of its packets.

AES-256-GCM is the faster cipher where the processor has instructions for AES, and by far the slower
one where it has none. `fastest_suite` measures that: no list of processors is as reliable.
"""

import os
import platform
from functools import cache
from pathlib import Path
from time import time_ns
from timeit import repeat
from typing import Final

from gradwire.errors import UsageError
from gradwire_protocol import Credentials
from gradwire_protocol.crypto.keys import (
    NAME_BYTES_MAX,
    IssuingKey,
    Role,
    RunKey,
    WorkerKey,
    parse_keys,
)
from gradwire_protocol.crypto.suites import (
    CIPHER_KEY_BYTES,
    CIPHER_NONCE_BYTES,
    CIPHERS,
    Suite,
    cipher_of,
)
from gradwire_protocol.limits import DATAGRAM_BYTES
from gradwire_udp.files.keys import read_keys

ROUNDS: Final = 16
"""Sealings of one datagram by each cipher. The fastest counts, so one without an interruption is
enough; at 1 µs with AES in hardware and 10 µs without, all of them take less than 1 ms."""


def credentials_of(
    key: WorkerKey | IssuingKey | RunKey | str | None,
    key_file: str,
    *,
    role: Role = Role.WORKER,
) -> Credentials | None:
    """Return the credentials to dial a master with; None without a key.

    Parameters
    ----------
    key : WorkerKey, IssuingKey, RunKey or str, optional
        Takes precedence over `key_file`.
    key_file : str
        Path of a key file; empty for none.
    role : Role
        Role of the key that is derived where the one found is a run key; an issuing key has one.

    Raises
    ------
    UsageError
        If `key` or the file holds no key.
    """
    found: list[RunKey] | RunKey | IssuingKey | WorkerKey
    if isinstance(key, str):
        found = parse_keys(key)
    elif key is not None:
        found = key
    elif key_file:
        found = read_keys(Path(key_file))
    else:
        return None
    if isinstance(found, list):
        found = found[0]
    if isinstance(found, RunKey):
        found = found.issuing_key(role)
    if isinstance(found, IssuingKey):
        found = found.worker_key(own_name())
    return Credentials(key=found, suite=fastest_suite(), unix_time_ns=time_ns)


def own_name() -> str:
    """Return a name for this process that is valid in a key, and that no other process has.

    Host name and process id do not suffice: containers can have both in common.
    """
    name = f"{platform.node()}/{os.getpid()}-{os.urandom(3).hex()}"
    # A host name can have any characters and length. The end tells processes apart.
    fitting = "".join(
        c if c.isascii() and c.isprintable() and c not in " :," else "-" for c in name
    )
    return fitting[-NAME_BYTES_MAX:]


def check_key(key: object) -> None:
    """Refuse what is neither a key nor the text of one; the `UsageError` does not contain it."""
    if isinstance(key, str):
        parse_keys(key)
    elif key is not None and not isinstance(key, RunKey | IssuingKey | WorkerKey):
        raise UsageError(
            f"key: an object of type {type(key).__name__}; it has to be the text of a key, a "
            "WorkerKey, an IssuingKey or a RunKey"
        )


@cache
def fastest_suite() -> Suite:
    """Return the suite that seals a datagram in less time on this machine."""
    return min(CIPHERS, key=_sealing_seconds)


def _sealing_seconds(suite: Suite) -> float:
    # Nothing sealed here is sent, so any key and nonce will do.
    cipher = cipher_of(suite, bytes(CIPHER_KEY_BYTES))
    nonce, datagram = bytes(CIPHER_NONCE_BYTES), bytes(DATAGRAM_BYTES)
    return min(repeat(lambda: cipher.encrypt(nonce, datagram, b""), repeat=ROUNDS, number=1))
