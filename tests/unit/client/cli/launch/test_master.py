"""A master as a child process, and one that takes the place of another that has died."""

from pathlib import Path

import pytest

from gradwire.cli.launch.master import Master, local_keys


def ignore(_: str) -> None:
    pass


def environ_of(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")


def master_at(listen: str) -> Master:
    return Master(listen, "off", Path("run.key"), ignore, ignore)


@pytest.mark.parametrize(
    ("listen", "own", "seconds"),
    [
        ("127.0.0.1:0", None, "0.25"),
        ("localhost:40123", None, "0.25"),
        ("[::1]:40123", None, "0.25"),
        ("0.0.0.0:40123", None, None),
        ("10.0.2.4:40123", None, None),
        ("127.0.0.1:0", "9", "9"),
    ],
)
def test_a_master_for_this_machine_alone_does_not_wait_long_in_the_end(
    listen: str, own: str | None, seconds: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if own is not None:
        monkeypatch.setenv("GRADWIRE_DRAIN_SECONDS", own)

    assert master_at(listen)._environ.get("GRADWIRE_DRAIN_SECONDS") == seconds


async def test_it_starts_again_at_the_same_port_and_with_its_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADWIRE_CHECKPOINT", str(tmp_path / "checkpoints"))
    with local_keys(0) as (run_key_file, _):
        async with Master("localhost:0", "127.0.0.1:0", run_key_file, ignore, ignore) as master:
            first = master.child, master.address, master.http
            master.child.send_signal(9)
            await master.child.wait()

            await master.start_again()

            assert (master.address, master.http) == first[1:]
            assert master.child is not first[0]
            environ = environ_of(master.child.pid)
    assert b"GRADWIRE_RESUME=auto" in environ
    assert b"GRADWIRE_NEW_RUN=0" in environ
    assert b"GRADWIRE_RECOVERY_SECONDS=0" not in environ
