"""Keys and identities on their way between processes.

A shard finds the keys it begins with in a file without a name, which lies in memory and whose
descriptor it inherits; of others it hears through its channel. What stood on its command line or in
its environment could be read by more than these two processes.
"""

import os
from typing import Any, TypeAlias

import msgpack

from gradwire_protocol.crypto.keys import Identity, Keyring, Role, parse_keys

PlainKeyring: TypeAlias = tuple[str, list[str]]
"""The text of a key file with the run keys, and the denied names."""

PlainIdentity: TypeAlias = tuple[str, int, bytes] | None


def pack_keyring(keyring: Keyring) -> PlainKeyring:
    """Return what a `Command.KEYS` says."""
    return "\n".join(key.format() for key in keyring.run_keys), sorted(keyring.denied)


def parse_keyring(run_keys: str, denied: Any) -> Keyring:
    """Return what `pack_keyring` was given."""
    keys = parse_keys(run_keys)
    assert isinstance(keys, list)
    return Keyring(keys, denied)


def new_keyring_file(keyring: Keyring) -> int:
    """Return the descriptor of a new file with a keyring; to be closed by the caller."""
    descriptor = os.memfd_create("gradwire-keys", os.MFD_CLOEXEC)
    with os.fdopen(descriptor, "wb", closefd=False) as file:
        file.write(msgpack.packb(pack_keyring(keyring)))
    return descriptor


def take_keyring(descriptor: int) -> Keyring:
    """Return the keyring in such a file, and close it."""
    with os.fdopen(descriptor, "rb") as file:
        file.seek(0)  # where it stands is what both processes share
        return parse_keyring(*msgpack.unpackb(file.read()))


def pack_identity(identity: Identity | None) -> PlainIdentity:
    """Return an identity, as a `Report.CONNECTED` tells it."""
    return None if identity is None else (identity.name, int(identity.role), identity.key_id)


def parse_identity(plain: PlainIdentity) -> Identity | None:
    """Return what `pack_identity` was given."""
    if plain is None:
        return None
    name, role, key_id = plain
    return Identity(name, Role(role), key_id)
