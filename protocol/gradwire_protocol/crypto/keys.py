"""Keys: which names may take part in a run, and in which role.

A run has a secret, the *run key*, which never leaves its master. From it follow *issuing keys*, one
for each role, and from these *worker keys*, one for each name, each by keyed BLAKE2s (RFC 7693,
section 2.9). So the master stores none of them: an INIT names its key by a *key id*, from which the
master recomputes the secret. An issuing key is for who starts workers: it makes the keys of its
role, and no others.

::

    key id            16 bytes, public; travels in the clear
    0       1         role
    1       3         fingerprint of the run key: selects one of several while keys are rotated
    4       12        pseudonym of the name: its hash, keyed with the issuing key

    secret            32 bytes: hash of the key id, keyed with the issuing key; the pre-shared key
                      of the handshake

The holder of a worker key knows neither the keys that it follows from nor any other worker key, and
an eavesdropper learns no names. The issuing key depends on the role, so a worker cannot give itself
another one. The name comes sealed in the INIT and has to match the key id.

A key file is text with one key a line. Empty lines and lines that begin with ``#`` are skipped::

    gradwire-run-key:BASE64               a run key; of several, the first makes new keys
    gradwire-issuing-key:ROLE:BASE64      an issuing key; only one a file
    gradwire-worker-key:ROLE:NAME:BASE64  a worker key; only one a file

BASE64 is the URL-safe alphabet (RFC 4648, section 5) without padding. It encodes the secret (of an
issuing key: fingerprint and secret; of a worker: key id and secret) and 4 bytes of its hash, which
detect a truncated line.
"""

import binascii
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from hashlib import blake2s
from typing import Final

from gradwire_protocol.errors import UsageError
from gradwire_protocol.limits import RUN_KEYS_MAX
from gradwire_protocol.removed import OPERATOR_REMOVED

SECRET_BYTES: Final = 32
KEY_ID_BYTES: Final = 16
FINGERPRINT_BYTES: Final = 3
PSEUDONYM_BYTES: Final = KEY_ID_BYTES - 1 - FINGERPRINT_BYTES
CHECK_BYTES: Final = 4

NAME_BYTES_MAX: Final = 63
"""UTF-8 bytes of the name in a key: the longest label of a host name (RFC 1035, section 2.3.4)."""

RUN_KEY_PREFIX: Final = "gradwire-run-key"
ISSUING_KEY_PREFIX: Final = "gradwire-issuing-key"
WORKER_KEY_PREFIX: Final = "gradwire-worker-key"


class KeyFormatError(UsageError):
    """A key that cannot be read. The message never repeats any part of it."""


class Role(IntEnum):
    """What the holder of a key may do. The number is the first byte of its key id."""

    WORKER = 1
    """Sends updates and receives those of other workers."""
    OBSERVER = 2
    """Receives what workers receive and cannot change the run."""
    STANDBY = 4
    """Takes the master's place when it is lost. A holder of the run key derives this key itself."""
    RELAY = 5
    """Lets workers in for its master. A holder of the run key derives this key itself."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The peer of a connection, as proved by its key."""

    name: str
    role: Role
    key_id: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class WorkerKey:
    """The key of one name in one role."""

    name: str
    role: Role
    key_id: bytes
    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        """Check that the parts fit together."""
        check_name(self.name)
        if len(self.key_id) != KEY_ID_BYTES or self.key_id[0] != self.role:
            raise KeyFormatError("the id of the worker key does not fit its role")
        if len(self.secret) != SECRET_BYTES:
            raise KeyFormatError(
                f"the worker key has {len(self.secret)} bytes; it has to have {SECRET_BYTES}"
            )

    def format(self) -> str:
        """Return the line of a key file."""
        text = _encode(self.key_id + self.secret)
        return f"{WORKER_KEY_PREFIX}:{self.role.name.lower()}:{self.name}:{text}"


@dataclass(frozen=True, slots=True, repr=False)
class IssuingKey:
    """Makes the keys of one role, for any name."""

    role: Role
    fingerprint: bytes
    """Of the run key."""
    secret: bytes
    """`SECRET_BYTES` bytes that follow from the run key."""

    def __post_init__(self) -> None:
        """Check the lengths."""
        if len(self.fingerprint) != FINGERPRINT_BYTES or len(self.secret) != SECRET_BYTES:
            raise KeyFormatError(
                f"the issuing key has {len(self.fingerprint)} and {len(self.secret)} bytes; it has "
                f"to have {FINGERPRINT_BYTES} and {SECRET_BYTES}"
            )

    def __repr__(self) -> str:
        """Show role and fingerprint, and never the secret."""
        return f"IssuingKey({self.role.name}, fingerprint={self.fingerprint.hex()})"

    def worker_key(self, name: str) -> WorkerKey:
        """Return the key of a name; always the same one."""
        key_id = self.key_id(name)
        return WorkerKey(name, self.role, key_id, self.secret_of(key_id))

    def key_id(self, name: str) -> bytes:
        """Return the id of the key of a name."""
        pseudonym = _derive(self.secret, b"gw-name", check_name(name).encode(), PSEUDONYM_BYTES)
        return bytes([self.role]) + self.fingerprint + pseudonym

    def secret_of(self, key_id: bytes) -> bytes:
        """Return the secret of the key with this id."""
        return _derive(self.secret, b"gw-psk", key_id, SECRET_BYTES)

    def format(self) -> str:
        """Return the line of a key file."""
        text = _encode(self.fingerprint + self.secret)
        return f"{ISSUING_KEY_PREFIX}:{self.role.name.lower()}:{text}"


@dataclass(frozen=True, slots=True, repr=False)
class RunKey:
    """The secret of a run."""

    secret: bytes
    """`SECRET_BYTES` random bytes."""

    def __post_init__(self) -> None:
        """Check the length."""
        if len(self.secret) != SECRET_BYTES:
            raise KeyFormatError(
                f"the run key has {len(self.secret)} bytes; it has to have {SECRET_BYTES}"
            )

    def __repr__(self) -> str:
        """Show the fingerprint and never the secret."""
        return f"RunKey(fingerprint={self.fingerprint.hex()})"

    @property
    def fingerprint(self) -> bytes:
        """Public identifier of the run key."""
        return _derive(self.secret, b"gw-print", b"", FINGERPRINT_BYTES)

    def worker_key(self, name: str, role: Role = Role.WORKER) -> WorkerKey:
        """Return the key of a name in a role; always the same one."""
        return self.issuing_key(role).worker_key(name)

    def issuing_key(self, role: Role) -> IssuingKey:
        """Return the key from which the keys of a role follow, and no others."""
        secret = _derive(self.secret, b"gw-issue", bytes([role]), SECRET_BYTES)
        return IssuingKey(role, self.fingerprint, secret)

    def reset_key(self, instance: str) -> bytes:
        """Return the key for the reset tokens of one master; it survives restarts.

        Parameters
        ----------
        instance : str
            Identifies the master among those with this run key. If two shared a key, each could
            reveal the tokens of the other's connections (RFC 9000, section 21.11).
        """
        return _derive(self.secret, b"gw-reset", instance.encode(), SECRET_BYTES)

    def format(self) -> str:
        """Return the line of a key file."""
        return f"{RUN_KEY_PREFIX}:{_encode(self.secret)}"


class Keyring:
    """The run keys that a master accepts, and the names that it denies.

    Parameters
    ----------
    run_keys : sequence of RunKey
        Newest first; 1 to `limits.RUN_KEYS_MAX`.
    denied : iterable of str
        Names that may not take part, whichever of their keys is used.
    """

    def __init__(self, run_keys: Sequence[RunKey], denied: Iterable[str] = ()) -> None:
        if not 1 <= len(run_keys) <= RUN_KEYS_MAX:
            raise UsageError(f"{len(run_keys)} run keys were given; use 1 to {RUN_KEYS_MAX}")
        self.run_keys = tuple(run_keys)
        self.denied = frozenset(map(check_name, denied))
        self._by_fingerprint = {key.fingerprint: key for key in self.run_keys}
        if len(self._by_fingerprint) != len(self.run_keys):
            raise UsageError(
                "two run keys are equal or have the same fingerprint; remove one of them"
            )

    def knows(self, key_id: bytes | memoryview) -> bool:
        """Return whether the key id names one of our run keys; nothing is proved yet."""
        return self._issuing_key_of(key_id) is not None

    def secret_of(self, key_id: bytes) -> bytes | None:
        """Return the secret of the key with this id; None if none of our run keys made it."""
        issuing_key = self._issuing_key_of(key_id)
        return None if issuing_key is None else issuing_key.secret_of(key_id)

    def identity(self, key_id: bytes, name: str) -> Identity | None:
        """Return the proved owner of a key, or None if the claimed name does not match."""
        issuing_key = self._issuing_key_of(key_id)
        if issuing_key is None:
            return None
        try:
            own = issuing_key.key_id(name)
        except KeyFormatError:
            return None
        matches = hmac.compare_digest(own, key_id)
        return Identity(name, issuing_key.role, key_id) if matches else None

    def admits(self, identity: Identity) -> bool:
        """Return whether its key is still accepted and its name not denied."""
        return identity.name not in self.denied and self.knows(identity.key_id)

    def _issuing_key_of(self, key_id: bytes | memoryview) -> IssuingKey | None:
        run_key = self._by_fingerprint.get(bytes(key_id[1 : 1 + FINGERPRINT_BYTES]))
        if run_key is None or key_id[0] not in ROLES:
            return None
        return run_key.issuing_key(Role(key_id[0]))


ROLES: Final = frozenset(int(role) for role in Role)


def check_name(name: str) -> str:
    """Return the name if a key can have it.

    Raises
    ------
    KeyFormatError
        If the name is empty, too long or not printable, or contains a colon, a comma or white
        space.
    """
    size = len(name.encode(errors="replace"))
    if not 1 <= size <= NAME_BYTES_MAX:
        raise KeyFormatError(f"the name has {size} bytes; it has to have 1 to {NAME_BYTES_MAX}")
    if not name.isprintable() or any(c.isspace() or c in ":," for c in name):
        raise KeyFormatError(
            f"name {name!r} has to be printable, without colons, commas and spaces"
        )
    return name


def parse_keys(text: str) -> list[RunKey] | IssuingKey | WorkerKey:
    """Read the text of a key file.

    Returns
    -------
    list of RunKey, or IssuingKey, or WorkerKey
        The run keys in their order, or the single other key.

    Raises
    ------
    KeyFormatError
        If the text is no key file. The message does not repeat what it found.
    """
    lines = enumerate(map(str.strip, text.splitlines()), 1)
    keys = [_parse_line(number, line) for number, line in lines if line and line[0] != "#"]
    run_keys = [key for key in keys if isinstance(key, RunKey)]
    others = [key for key in keys if not isinstance(key, RunKey)]
    if run_keys and not others:
        if len(run_keys) > RUN_KEYS_MAX:
            raise KeyFormatError(
                f"the key file has {len(run_keys)} run keys; the limit is {RUN_KEYS_MAX}"
            )
        return run_keys
    if len(others) == 1 and not run_keys:
        return others[0]
    raise KeyFormatError(
        f"{len(run_keys)} run keys and {len(others)} worker keys or issuing keys; a key file has "
        "either run keys, or one of the others"
    )


def _parse_line(number: int, line: str) -> RunKey | IssuingKey | WorkerKey:
    match line.split(":"):
        case [prefix, text] if prefix == RUN_KEY_PREFIX:
            return RunKey(_decode(number, text, SECRET_BYTES))
        case [prefix, role, text] if prefix == ISSUING_KEY_PREFIX:
            held = _role(number, role)
            data = _decode(number, text, FINGERPRINT_BYTES + SECRET_BYTES)
            return IssuingKey(held, data[:FINGERPRINT_BYTES], data[FINGERPRINT_BYTES:])
        case [prefix, role, name, text] if prefix == WORKER_KEY_PREFIX:
            held = _role(number, role)
            data = _decode(number, text, KEY_ID_BYTES + SECRET_BYTES)
            return WorkerKey(name, held, data[:KEY_ID_BYTES], data[KEY_ID_BYTES:])
    raise KeyFormatError(f"line {number} is no key: `gradwire keygen` makes key files")


def _role(number: int, text: str) -> Role:
    if text == "operator":
        raise KeyFormatError(f"line {number} has an operator's key: {OPERATOR_REMOVED}")
    if text.upper() not in Role.__members__:
        raise KeyFormatError(f"line {number} names an unknown role")
    return Role[text.upper()]


def _derive(secret: bytes, purpose: bytes, data: bytes, size: int) -> bytes:
    return blake2s(data, key=secret, person=purpose, digest_size=size).digest()


def _encode(data: bytes) -> str:
    return urlsafe_b64encode(data + _check(data)).decode().rstrip("=")


def _decode(number: int, text: str, size: int) -> bytes:
    try:
        data = urlsafe_b64decode(text + "=" * (-len(text) % 4))
    except (binascii.Error, ValueError):
        data = b""
    if len(data) != size + CHECK_BYTES or _check(data[:size]) != data[size:]:
        raise KeyFormatError(f"line {number}: the key is damaged or incomplete")
    return data[:size]


def _check(data: bytes) -> bytes:
    return blake2s(data, person=b"gw-check", digest_size=CHECK_BYTES).digest()
