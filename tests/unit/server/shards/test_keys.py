"""Keys reach a shard, and identities process 0, and neither by way of a command line."""

import os
import signal
from pathlib import Path

import msgpack
import pytest

from gradwire_protocol import CloseCode, Connected
from gradwire_protocol.crypto.keys import SECRET_BYTES, Identity, Keyring, Role, RunKey
from gradwire_server.shards.keys import (
    new_keyring_file,
    pack_identity,
    pack_keyring,
    parse_identity,
    parse_keyring,
    read_keyring,
)
from support.driven_side import on_a_loop, on_loops
from support.shard_rig import Rig, shards
from support.waiting import until

OLD, NEW, STRANGE = (RunKey(bytes([n]) * SECRET_BYTES) for n in range(3))
KEYRING = Keyring([NEW, OLD], ["gpu6", "gpu5"])


def same(one: Keyring, other: Keyring) -> bool:
    return (one.run_keys, one.denied) == (other.run_keys, other.denied)


# As records.


def test_a_keyring_travels_whole() -> None:
    through_a_channel = msgpack.unpackb(msgpack.packb(pack_keyring(KEYRING)), use_list=False)

    assert same(parse_keyring(*through_a_channel), KEYRING)


def test_a_keyring_waits_in_a_file_that_is_closed_once_it_was_taken() -> None:
    descriptor = new_keyring_file(KEYRING)

    taken = read_keyring(os.dup(descriptor))
    again = read_keyring(descriptor)

    assert same(taken, KEYRING)
    assert same(again, KEYRING)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


@pytest.mark.parametrize("role", Role)
def test_an_identity_travels_whole(role: Role) -> None:
    identity = Identity("gpu7", role, NEW.worker_key("gpu7", role).key_id)

    through_a_channel = msgpack.unpackb(msgpack.packb(pack_identity(identity)), use_list=False)

    assert parse_identity(through_a_channel) == identity
    assert parse_identity(pack_identity(None)) is None


# In processes.


async def refused(rig: Rig, index: int, key: RunKey | None, name: str = "gpu7") -> None:
    """See that a shard does not even answer such a worker."""
    count = len(rig.heard.of(Connected))
    worker = rig.dial(index, None if key is None else key.worker_key(name), seconds=0.5)
    await until(lambda: worker.ended, "the worker to give up")
    assert worker.connection is None
    assert len(rig.heard.of(Connected)) == count


@on_loops
async def test_a_shard_lets_in_whom_the_keyring_admits_and_says_who_it_is() -> None:
    async with shards(keyring=KEYRING) as rig:
        for index, run_key, role in ((1, NEW, Role.WORKER), (2, OLD, Role.OBSERVER)):
            key = run_key.worker_key("gpu7", role)

            _, connection = await rig.worker_at(index, key)

            assert connection.identity == Identity("gpu7", role, key.key_id)
        await refused(rig, 1, STRANGE)
        await refused(rig, 1, NEW, "gpu6")
        await refused(rig, 2, None)


@on_loops
async def test_other_keys_reach_shards_that_run_and_end_what_they_do_not_admit() -> None:
    async with shards(keyring=Keyring([OLD])) as rig:
        former, _ = await rig.worker_at(1, OLD.worker_key("former"))
        denied, _ = await rig.worker_at(1, OLD.worker_key("denied"))

        rig.supervisor.set_keyring(Keyring([NEW, OLD], ["denied"]))
        await until(lambda: denied.ended, "the end of the one who is denied")
        both = [await rig.worker_at(1, key.worker_key("both")) for key in (OLD, NEW)]
        rig.supervisor.set_keyring(Keyring([NEW]))
        await until(lambda: former.ended and both[0][0].ended, "the end of the former key")

        assert denied.ended is not None
        assert (denied.ended.code, denied.ended.by_peer) == (CloseCode.DENIED, True)
        assert both[1][0].ended is None
        await refused(rig, 1, OLD)


@on_a_loop
async def test_a_shard_that_is_started_again_has_the_keys_of_now() -> None:
    async with shards(processes=2, keyring=Keyring([OLD])) as rig:
        [pid] = rig.pids
        rig.supervisor.set_keyring(Keyring([NEW]))

        os.kill(pid, signal.SIGKILL)
        await until(lambda: rig.pids not in ([pid], []), "its successor")

        _, connection = await rig.worker_at(1, NEW.worker_key("gpu7"))
        assert connection.identity is not None
        await refused(rig, 1, OLD)


def told_publicly(pid: int) -> bytes:
    """Return the command line and the environment of a process."""
    return b"".join(Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ"))


def files_with_keys() -> list[str]:
    """Return the files of this process that keys were handed over in."""
    return [
        name
        for path in Path("/proc/self/fd").iterdir()
        if path.is_symlink() and "gradwire-keys" in (name := str(path.readlink()))
    ]


@on_a_loop
async def test_nothing_of_a_key_is_on_the_command_line_or_in_the_environment_of_a_shard() -> None:
    async with shards(keyring=KEYRING) as rig:
        for pid in rig.pids:
            for key in KEYRING.run_keys:
                assert key.format().rpartition(":")[2].encode() not in told_publicly(pid)
        assert files_with_keys() == []
