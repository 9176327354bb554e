"""Keys and identities on their way between processes.

A shard reads its first keys from a file without a name, in memory, whose descriptor it inherits;
new keys come through its channel. Other processes could read its command line and its environment.
"""

import os
from typing import Any, TypeAlias

import msgpack

from gradwire_protocol.crypto.keys import Identity, Keyring, Role, parse_keys

PlainKeyring: TypeAlias = tuple[str, list[str]]
"""The text of a key file with the run keys, and the denied names."""

PlainIdentity: TypeAlias = tuple[str, int, bytes] | None


def pack_keyring(keyring: Keyring) -> PlainKeyring:
    """Return a keyring as the fields of `Command.KEYS`."""
    return "\n".join(key.format() for key in keyring.run_keys), sorted(keyring.denied)


def parse_keyring(run_keys: str, denied: Any) -> Keyring:
    """Return the keyring of `pack_keyring`."""
    keys = parse_keys(run_keys)
    assert isinstance(keys, list)
    return Keyring(keys, denied)


def new_keyring_file(keyring: Keyring) -> int:
    """Return the descriptor of a new file with a keyring; the caller closes it."""
    descriptor = os.memfd_create("gradwire-keys", os.MFD_CLOEXEC)
    with os.fdopen(descriptor, "wb", closefd=False) as file:
        file.write(msgpack.packb(pack_keyring(keyring)))
    return descriptor


def read_keyring(descriptor: int) -> Keyring:
    """Return the keyring in a file of `new_keyring_file`, and close the file."""
    with os.fdopen(descriptor, "rb") as file:
        file.seek(0)  # both processes share the file's position
        return parse_keyring(*msgpack.unpackb(file.read()))


def pack_identity(identity: Identity | None) -> PlainIdentity:
    """Return an identity as the field of `Report.CONNECTED`."""
    return None if identity is None else (identity.name, int(identity.role), identity.key_id)


def parse_identity(plain: PlainIdentity) -> Identity | None:
    """Return the identity of `pack_identity`."""
    if plain is None:
        return None
    name, role, key_id = plain
    return Identity(name, Role(role), key_id)
