"""`Announcer`: keeps a master announced in a ZooKeeper ensemble, on a thread of its own.

The event loop says once a second what is to be announced; the thread puts it there where it
differs, and again where it is gone. The master serves on, whatever becomes of that. Only a master
that was never announced, because another one lives there or the ensemble lets it change nothing,
ends with an error.
"""

import logging
import platform
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from threading import Event, Thread
from time import monotonic
from typing import Any, Final, TypeAlias

from prometheus_client import Gauge

from gradwire_protocol import GradwireError, UnreachableError, UsageError
from gradwire_protocol.limits import KIB
from gradwire_server.daemon.zookeeper_board import Listed, TakenError, ZooKeeperBoard
from gradwire_server.runs.runs import Runs
from gradwire_udp import split_address
from gradwire_udp.discovery.announcement import HOST_CHARACTERS_MAX, PERSONAL, Announcement
from gradwire_udp.discovery.places import place_of
from gradwire_udp.discovery.zookeeper import SESSION_SECONDS, ZooKeeperPlace, require_kazoo
from gradwire_udp.files.configuration import read_table
from gradwire_udp.files.keys import read_secret

logger = logging.getLogger("gradwire.announcer")

LOOK_SECONDS: Final = 1.0
"""Between two looks. Whatever changes, an ensemble hears of it no more often."""

TAKEN_SECONDS: Final = 2 * SESSION_SECONDS
"""How long a started master waits for the session of another one to end. By then that one lives."""

CLOSE_SECONDS_MAX: Final = 3.0
"""For taking the announcement away."""

CREDENTIAL_BYTES_MAX: Final = KIB

Wanted: TypeAlias = tuple[Announcement, Sequence[Listed]]
"""What is to be announced, and the workers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcing:
    """Where a master announces itself, and what besides its address."""

    place: ZooKeeperPlace
    credential: str | None
    settings: Mapping[str, Any]
    """For workers, by name."""

    @classmethod
    def of(
        cls,
        text: str,
        auth_file: Path | None,
        config: Path | None,
        own: Mapping[str, Any],
        address: str,
    ) -> "Announcing":
        """Return what the options of a master say.

        Parameters
        ----------
        address : str
            Where workers are to reach it.
        config : Path or None
            TOML file, whose table ``[session]`` has settings for workers.
        own : mapping
            Settings for workers that follow from the master's own; None for none.

        Raises
        ------
        UsageError
            If no master can announce itself there, or a setting cannot be announced.
        """
        place = place_of(text)
        if not isinstance(place, ZooKeeperPlace):
            raise UsageError(
                f"--announce {text}: write zk://host:2181/path; where DNS has the addresses, the "
                "master has nothing to announce"
            )
        require_kazoo(place)
        _check_address(place, address)
        credential = None
        if auth_file is not None:
            credential = read_secret(auth_file, "credential file", CREDENTIAL_BYTES_MAX).strip()
            if not all(credential.partition(":")) or not credential.isprintable():
                raise UsageError(
                    f"credential file {auth_file}: it has to be one line USER:PASSWORD"
                )
        table = {} if config is None else read_table(config, "session")[0]
        settings = {name: value for name, value in table.items() if name not in PERSONAL}
        settings |= {name: value for name, value in own.items() if value is not None}
        Announcement(masters=("host:40123",), settings=settings).pack()  # raises if it cannot be
        return cls(place=place, credential=credential, settings=settings)

    def wanted(self, address: str, runs: Runs) -> Wanted | None:
        """Return what to announce now; None while another master is in charge.

        `address` is where workers reach this one.
        """
        terms = runs.first.terms
        if not terms.in_charge:
            return None
        announcement = Announcement(
            masters=(address,) if terms.other is None else (address, terms.other),
            settings=self.settings,
            host=platform.node()[:HOST_CHARACTERS_MAX],
            term=0 if terms.other is None else terms.term,
        )
        return announcement, [
            Listed(run, member.rank, member.shown_name, member.phase.name.lower())
            for run, master in runs.masters
            for member in master.roster
            if not member.stands_by
        ]


def _check_address(place: ZooKeeperPlace, address: str) -> None:
    """Raise `UsageError` if workers on other machines cannot reach what would be announced."""
    remedy = "pass --advertise HOST, or listen at one of this machine's addresses"
    try:
        host = ip_address(split_address(address)[0])
    except ValueError:
        return  # a name
    if host.is_unspecified:
        raise UsageError(f"--announce {place.text} with --listen {address}: {remedy}")
    if host.is_loopback and not place.is_near:
        raise UsageError(
            f"--announce {place.text} with {address}, which other machines cannot reach: {remedy}"
        )


class Announcer:
    """Keeps up the announcement of a master.

    Parameters
    ----------
    address : str
        Where workers reach it.
    gauge : Gauge
        Says whether it stands there.
    on_failed : callable
        Called on the thread with the error of a master that cannot be announced there.
    """

    def __init__(
        self,
        announcing: Announcing,
        address: str,
        runs: Runs,
        gauge: Gauge,
        on_failed: Callable[[GradwireError], None],
    ) -> None:
        self._announcing = announcing
        self._address = address
        self._runs = runs
        self._gauge = gauge
        self._wanted: Wanted | None = None
        self._problem: str | None = None
        """Why it does not stand there; None while it does, or nothing is to be announced."""
        self._place = announcing.place.text
        self._board = ZooKeeperBoard(announcing.place, announcing.credential)
        self._on_failed = on_failed
        self._was_announced = False
        self._stands = False
        self._stopping = Event()
        self._thread = Thread(target=self._run, name="gradwire-announcer", daemon=True)

    def begin(self) -> None:
        """Start to announce."""
        self.look()
        self._thread.start()

    def look(self) -> None:
        """Note what is to be announced now; the thread does so soon."""
        self._wanted = self._announcing.wanted(self._address, self._runs)

    def close(self) -> None:
        """Take the announcement away; waits for that, with a limit."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(CLOSE_SECONDS_MAX)
            if self._thread.is_alive():
                logger.warning(
                    "ZooKeeper is slow: the announcement at %s stands until its session ends, "
                    "within %g s",
                    self._place,
                    SESSION_SECONDS,
                )

    # On the thread.

    def _run(self) -> None:
        began = monotonic()
        while not self._stopping.is_set():
            try:
                self._post()
            except TakenError as error:
                # What a killed master has announced stands until its session ends.
                self._note_problem(error, is_final=monotonic() - began >= TAKEN_SECONDS)
            except GradwireError as error:
                self._note_problem(error, is_final=not isinstance(error, UnreachableError))
            except Exception as error:
                logger.exception("internal error of the announcement at %s", self._place)
                self._note_problem(error, is_final=False)
            self._stopping.wait(LOOK_SECONDS)
        with suppress(Exception):  # the master ends anyway, and its announcement with it
            self._board.close()

    def _post(self) -> None:
        wanted = self._wanted
        if wanted is None:
            self._board.close()
            if self._stands:
                logger.info("not in charge any more: no longer announced at %s", self._place)
        else:
            self._board.post(*wanted)
            if not self._stands:
                logger.info("announced at %s: %s", self._place, wanted[0].masters[0])
            self._was_announced = True
        self._note_standing(wanted is not None, None)

    def _note_problem(self, error: Exception, *, is_final: bool) -> None:
        """End a master that was never announced, if that is final; else say so, once."""
        if is_final and not self._was_announced and isinstance(error, GradwireError):
            self._stopping.set()
            self._on_failed(error)
        elif str(error) != self._problem:
            logger.warning("not announced at %s: %s; the master serves on", self._place, error)
        self._note_standing(False, str(error))

    def _note_standing(self, stands: bool, problem: str | None) -> None:
        self._stands, self._problem = stands, problem
        self._gauge.set(stands)
