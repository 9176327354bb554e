"""What a worker proves itself by and seals its packets with: its key and its cipher.

A key comes from where the settings say. AES-256-GCM is the faster cipher where the processor
computes AES, and the slower one by far where it does not; no list of processors says so as well as
asking this one.
"""

import os
import platform
from functools import cache
from pathlib import Path
from time import perf_counter_ns, time_ns
from typing import Final, Literal

from gradwire.errors import UsageError
from gradwire_protocol import Credentials
from gradwire_protocol.crypto.keys import NAME_BYTES_MAX, Role, RunKey, WorkerKey, parse_keys
from gradwire_protocol.crypto.suites import CIPHER_KEY_BYTES, CIPHER_NONCE_BYTES, Suite, cipher_of
from gradwire_protocol.limits import DATAGRAM_BYTES
from gradwire_udp.files.keys import read_keys

CipherName = Literal["auto", "aes", "chacha"]

SUITES: Final = {"aes": Suite.AES, "chacha": Suite.CHACHA}

ROUNDS: Final = 16
"""Sealings of one datagram by each cipher. The fastest counts, so one that was not interrupted is
enough; at 1 µs with AES in hardware and 10 µs without, all of them take less than 1 ms."""


def credentials_of(
    key: WorkerKey | RunKey | str | None,
    key_file: str,
    cipher: CipherName,
    *,
    role: Role = Role.WORKER,
) -> Credentials | None:
    """Return the credentials of who dials a master; None for who has no key.

    Parameters
    ----------
    key : WorkerKey, RunKey or str, optional
        A key, or the text of one.
    key_file : str
        Path of a key file; empty for none. `key` comes first.
    cipher : str
        ``"aes"``, ``"chacha"``, or ``"auto"`` for the faster one.
    role : Role
        Of the key to make, where it is a run key that was found.

    Raises
    ------
    UsageError
        If there is no key where there should be one.
    """
    found: list[RunKey] | RunKey | WorkerKey
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
        found = found.worker_key(own_name(), role)
    suite = SUITES[cipher] if cipher != "auto" else fastest_suite()
    return Credentials(key=found, suite=suite, unix_time_ns=time_ns)


def own_name() -> str:
    """Return a name for this process that a key can have, and that no other process has.

    Containers can have the host's name, and all the same process id.
    """
    name = f"{platform.node()}/{os.getpid()}-{os.urandom(3).hex()}"
    # A host may be called anything. What comes last tells processes apart.
    fitting = "".join(
        c if c.isascii() and c.isprintable() and c not in " :," else "-" for c in name
    )
    return fitting[-NAME_BYTES_MAX:]


def check_key(key: object) -> None:
    """Refuse what is no key, without a word of it.

    Raises
    ------
    UsageError
        If it is neither a key nor the text of one.
    """
    if isinstance(key, str):
        parse_keys(key)
    elif key is not None and not isinstance(key, RunKey | WorkerKey):
        raise UsageError(
            f"key: an object of type {type(key).__name__}; it has to be the text of a key, a "
            "WorkerKey or a RunKey"
        )


@cache
def fastest_suite() -> Suite:
    """Return the suite that this machine seals a datagram with in less time."""
    return min(SUITES.values(), key=_sealing_ns)


def _sealing_ns(suite: Suite) -> int:
    # What is sealed here goes nowhere, so key and nonce may be anything.
    cipher = cipher_of(suite, bytes(CIPHER_KEY_BYTES))
    nonce, datagram = bytes(CIPHER_NONCE_BYTES), bytes(DATAGRAM_BYTES)
    fastest = 2**63
    for _ in range(ROUNDS):
        began = perf_counter_ns()
        cipher.encrypt(nonce, datagram, b"")
        fastest = min(fastest, perf_counter_ns() - began)
    return fastest
