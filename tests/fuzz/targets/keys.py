"""Key files: the input is the text of one.

Whatever is accepted is written and read again as the same keys, and neither an error message nor a
`repr` repeats a secret.
"""

from collections.abc import Iterable
from typing import Final

from gradwire_protocol.crypto.keys import (
    SECRET_BYTES,
    IssuingKey,
    KeyFormatError,
    Role,
    RunKey,
    WorkerKey,
    check_name,
    parse_keys,
)

BYTES_MAX: Final = 600

SECRET_CHARACTERS: Final = 32
"""A text that is longer and stands where a secret does is taken for one."""


def check(data: bytes) -> None:
    """Read a key file."""
    text = data.decode(errors="replace")
    try:
        keys = parse_keys(text)
    except KeyFormatError as error:
        message = str(error)
        for line in text.splitlines():
            secret = line.strip().rpartition(":")[2]
            assert len(secret) < SECRET_CHARACTERS or secret not in message, "a secret is shown"
        return
    if isinstance(keys, WorkerKey):
        assert parse_keys(keys.format()) == keys
        assert check_name(keys.name) == keys.name
        check_hidden(keys.format(), repr(keys))
        return
    if isinstance(keys, IssuingKey):
        assert parse_keys(keys.format()) == keys
        check_hidden(keys.format(), repr(keys))
        return
    assert keys
    assert parse_keys("\n".join(key.format() for key in keys)) == keys
    for key in keys:
        check_hidden(key.format(), repr(key))
        worker_key = key.worker_key("worker", Role.OBSERVER)
        assert parse_keys(worker_key.format()) == worker_key


def check_hidden(line: str, shown: str) -> None:
    """Look for the secret of a line in what is shown of the key."""
    assert line.rpartition(":")[2] not in shown


def seeds() -> Iterable[bytes]:
    """Return key files of all kinds, and one that is damaged."""
    one, other = RunKey(bytes(range(SECRET_BYTES))), RunKey(b"s" * SECRET_BYTES)
    lines = [one.format(), other.format()]
    yield lines[0].encode()
    yield one.issuing_key(Role.WORKER).format().encode()
    yield "\n".join(["# newest first", "", *lines, ""]).encode()
    yield lines[0][:-3].encode()
    for role, name in zip(Role, ("host-7", "w\u00f6rker", "second"), strict=True):
        yield one.worker_key(name, role).format().encode()
    yield one.worker_key("host-7").format().replace("host-7", "an other").encode()
