"""Sessions that find their master where it is announced; here, in a file."""

import json
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import gradwire
from gradwire.cli.app import EXIT_UNREACHABLE, main
from gradwire_protocol import RunKey
from gradwire_protocol.crypto.keys import SECRET_BYTES
from gradwire_udp.discovery.announcement import Announcement
from gradwire_udp.discovery.file import FilePlace
from support.local_master import LocalMaster
from support.sessions import RUN_KEY, zeros
from support.waiting import wait_until
from support.wording import naming

Announce = Callable[..., str]


@pytest.fixture
def announce(tmp_path: Path) -> Announce:
    """Write an announcement; return its place."""
    place = FilePlace(tmp_path / "run.json")

    def write(*masters: LocalMaster, **fields: Any) -> str:
        addresses = ",".join(master.address for master in masters)
        said = Announcement(master=addresses, lasts_seconds=15.0, at=time.time())
        place.path.write_bytes(replace(said, **fields).pack())
        return place.text

    return write


def join(place: str, **settings: Any) -> gradwire.Session:
    return gradwire.join(zeros(), master=place, start_timeout_seconds=0.0, **settings)


def test_a_worker_takes_address_and_settings_from_where_the_master_is_announced(
    announce: Announce, master: LocalMaster
) -> None:
    said = {"run": "digits", "mode": "averaging(every=3)"}
    place = announce(master, settings=said)

    with join(place) as session:
        assert session.run == "digits"
        [run] = master.runs.status()["runs"]
        assert run["mode"] == naming("averaging", "every=3")


def test_what_a_worker_says_itself_counts_more_than_what_is_announced(
    announce: Announce, master: LocalMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRADWIRE_MASTER", announce(master, settings={"run": "theirs"}))

    with gradwire.join(zeros(), run="ours") as session:
        assert session.run == "ours"


def test_masters_that_share_the_parameters_are_found_together(announce: Announce) -> None:
    with LocalMaster() as one, LocalMaster() as other, join(announce(one, other)) as session:
        assert session.rank == 0
        assert len(one.master.roster) == len(other.master.roster) == 1


def test_a_worker_that_dials_a_dead_master_finds_the_one_that_is_announced_meanwhile(
    announce: Announce, master: LocalMaster, caplog: pytest.LogCaptureFixture
) -> None:
    """The place has the address of a master that is gone, until another one takes its place."""
    with LocalMaster() as dead:
        place = announce(dead)
    caplog.set_level(logging.INFO)

    def move(record: logging.LogRecord) -> bool:
        if dead.address in record.getMessage():
            announce(master)
        return True

    logging.getLogger("gradwire.join").addFilter(move)
    try:
        with gradwire.join(zeros(), master=place, start_timeout_seconds=20.0) as session:
            assert session.rank == 0
            master.wait_for_workers(1)
    finally:
        logging.getLogger("gradwire.join").removeFilter(move)
    assert caplog.text == naming(master.address, place)


def test_a_worker_whose_key_the_master_would_not_take_is_told_at_once(
    announce: Announce, keyed_master: LocalMaster
) -> None:
    fingerprint = RUN_KEY.fingerprint.hex()
    place = announce(keyed_master, keys=(fingerprint,))
    with pytest.raises(gradwire.UsageError, match=naming(fingerprint, "gradwire keygen", place)):
        join(place)
    other = RunKey(bytes(range(1, 1 + SECRET_BYTES)))
    with pytest.raises(
        gradwire.UsageError, match=naming(fingerprint, other.fingerprint.hex(), place)
    ):
        join(place, key=other)
    with join(place, key=RUN_KEY) as session:
        assert session.rank == 0

    keyless = announce(keyed_master, keys=())
    with pytest.raises(gradwire.UsageError, match=naming("no key", fingerprint)):
        join(keyless, key=RUN_KEY)


def test_a_place_without_a_master_is_named_when_the_time_is_over(tmp_path: Path) -> None:
    place = f"file://{tmp_path}/run.json"

    with pytest.raises(gradwire.UnreachableError, match=naming(place, "waited 0.5 s")):
        join(place, connect_timeout_seconds=0.5)


def test_operate_and_doctor_find_the_master_where_it_is_announced(
    announce: Announce,
    keyed_master: LocalMaster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    key = tmp_path / "run.key"
    key.write_text(RUN_KEY.format())
    key.chmod(0o600)
    place = announce(keyed_master, keys=(RUN_KEY.fingerprint.hex(),))
    handlers = list(logging.getLogger("gradwire").handlers)
    try:
        assert main(["operate", "status", "--master", place, "--key-file", str(key)]) == 0
        assert json.loads(capsys.readouterr().out)["runs"] == []
        announce(keyed_master, master=f"{keyed_master.address},another.invalid:1")
        assert main(["operate", "status", "--master", place, "--key-file", str(key)]) == 0
        assert json.loads(capsys.readouterr().out)["runs"] == []
        place = announce(keyed_master, keys=(RUN_KEY.fingerprint.hex(),))
        main(["doctor", "--json", "--master", place, "--key-file", str(key)])
        checks = {each["name"]: each for each in json.loads(capsys.readouterr().out)["checks"]}
        assert checks["announcement"]["state"] == "ok"
        assert checks["announcement"]["text"] == naming(keyed_master.address)
        assert checks["port"]["state"] == "ok"
        (tmp_path / "run.json").write_text("{}")
        status = main(["doctor", "--json", "--master", place])
        checks = {each["name"]: each for each in json.loads(capsys.readouterr().out)["checks"]}
        assert status == EXIT_UNREACHABLE
        assert checks["announcement"]["state"] == "broken"
        assert checks["announcement"]["text"] == naming("'gradwire'", tmp_path / "run.json")
    finally:
        logging.getLogger("gradwire").handlers[:] = handlers
    wait_until(lambda: len(keyed_master.master.roster) == 0, "everyone to be gone")
