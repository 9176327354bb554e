"""`Announcing` and `Description`: where a master announces itself, and what it says of itself."""

import logging
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, TypeAlias
from urllib.parse import quote

from gradwire_protocol import Keyring, UnreachableError, UsageError
from gradwire_server.config import MasterConfig
from gradwire_server.daemon.board import Board
from gradwire_server.daemon.file_board import FileBoard
from gradwire_server.daemon.zookeeper_board import ZooKeeperBoard, worker_content
from gradwire_server.runs.runs import Runs
from gradwire_udp import show_address
from gradwire_udp.discovery.announcement import PERSONAL, Announcement
from gradwire_udp.discovery.file import FilePlace
from gradwire_udp.discovery.places import place_of
from gradwire_udp.discovery.zookeeper import ZooKeeperPlace
from gradwire_udp.files.configuration import read_table
from gradwire_udp.files.keys import read_credential
from gradwire_udp.sockets import local_address_towards

logger = logging.getLogger("gradwire.announcer")

INSTANCE_BYTES: Final = 8

HOST_CHARACTERS_MAX: Final = 255

Wanted: TypeAlias = tuple[Announcement | None, Mapping[str, bytes]]
"""What is to be announced, None for nothing, and the workers by the names of their nodes."""


@dataclass(frozen=True, slots=True)
class Announcing:
    """Where a master announces itself, and what besides its address."""

    place: FilePlace | ZooKeeperPlace
    credential: str | None
    settings: Mapping[str, Any]
    """For workers, by name."""

    @classmethod
    def of(
        cls, text: str, auth_file: Path | None, own: Mapping[str, Any], path: Path | None
    ) -> "Announcing":
        """Return what the options of a master say.

        Parameters
        ----------
        own : mapping
            Settings for workers that follow from the master's own; None for none.
        path : Path or None
            TOML file, whose table ``[session]`` has settings for workers.

        Raises
        ------
        UsageError
            If no master can announce itself there, or a setting cannot be announced.
        """
        place = place_of(text)
        if not isinstance(place, FilePlace | ZooKeeperPlace):
            why = "no place" if place is None else "read only: its zone has the records"
            raise UsageError(
                f"--announce {text}: that is {why}; write zk://host:2181/path or "
                "file:///folder/run.json"
            )
        if auth_file is not None and not isinstance(place, ZooKeeperPlace):
            raise UsageError(
                f"--announce-auth-file {auth_file} with --announce {text}: only ZooKeeper takes a "
                "credential; who may write a file, its folder says"
            )
        credential = None if auth_file is None else read_credential(auth_file)
        table = {} if path is None else read_table(path, "session")[0]
        settings = {name: value for name, value in table.items() if name not in PERSONAL}
        settings |= {name: value for name, value in own.items() if value is not None}
        Announcement(master="", settings=settings).pack()  # raises for what JSON lacks
        return cls(place, credential, settings)

    def board(self) -> Board:
        """Return where it is put up."""
        if isinstance(self.place, FilePlace):
            return FileBoard(self.place)
        return ZooKeeperBoard(self.place, self.credential)


class Description:
    """What a daemon announces, from what it serves; all but its address, which takes a look-up.

    Parameters
    ----------
    keyring : callable
        Returns its run keys; None without any.
    """

    def __init__(
        self,
        announcing: Announcing,
        config: MasterConfig,
        runs: Runs,
        keyring: Callable[[], Keyring | None],
    ) -> None:
        self._config = config
        self._runs = runs
        self._keyring = keyring
        other = config.standby or config.standby_of
        lasts = FileBoard if isinstance(announcing.place, FilePlace) else ZooKeeperBoard
        self._announcement = Announcement(
            master=config.shards or "",
            others=() if other is None else (other,),
            settings=announcing.settings,
            version=version("gradwire"),
            host=platform.node()[:HOST_CHARACTERS_MAX],
            instance=os.urandom(INSTANCE_BYTES).hex(),
            lasts_seconds=lasts.lasts_seconds,
        )

    def __call__(self) -> Wanted:
        """Return what to announce now: nothing while another master is in charge."""
        terms = self._runs.first.terms
        if not terms.in_charge:
            return None, {}
        keyring = self._keyring()
        keys = () if keyring is None else tuple(key.fingerprint.hex() for key in keyring.run_keys)
        workers = {
            f"{quote(run, safe='')}:{member.rank}": worker_content(
                member.rank, member.shown_name, member.phase.name.lower(), run
            )
            for run, master in self._runs.masters
            for member in master.roster
            if not member.stands_by
        }
        return replace(self._announcement, keys=keys, term=terms.term), workers


def address_for(
    place: FilePlace | ZooKeeperPlace, bound: str, port: int, advertise: str | None
) -> str:
    """Return the address to announce; `advertise` is that of ``--advertise``, with its port.

    Resolves names of servers, and blocks for as long as that takes.

    Raises
    ------
    UsageError
        If the master listens everywhere, and nothing says which address workers reach.
    UnreachableError
        If that follows from the way to the servers, and there is none to any.
    """
    if advertise is not None:
        return advertise
    if ip_address(bound).is_unspecified:
        if isinstance(place, FilePlace):
            raise UsageError(
                f"--announce {place.text} with --listen {show_address((bound, port))}: which of "
                "this machine's addresses do workers use? Say --advertise HOST, or listen at one"
            )
        bound = _address_towards(place.servers)
    announced = ip_address(bound)
    if announced.is_loopback and not _is_near(place):
        logger.warning(
            "%s announces %s, which other machines cannot reach: listen at an address of this "
            "machine, or say --advertise HOST",
            place.text,
            bound,
        )
    return show_address((bound, port))


def _address_towards(servers: Sequence[str]) -> str:
    """Return an address of this machine; loopback only where it has no other towards any server."""
    loopback = ""
    problem: UnreachableError | None = None
    for server in servers:
        try:
            address = local_address_towards(server)
        except UnreachableError as error:
            problem = error
            continue
        if not ip_address(address).is_loopback:
            return address
        loopback = address
    if problem is not None and not loopback:
        raise problem
    return loopback


def _is_near(place: FilePlace | ZooKeeperPlace) -> bool:
    """Return whether all who look there may be on this machine."""
    if isinstance(place, FilePlace):
        return True
    hosts = [server.rpartition(":")[0].strip("[]") for server in place.servers]
    return all(host in ("localhost", "::1") or host.startswith("127.") for host in hosts)
