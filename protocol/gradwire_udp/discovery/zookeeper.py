"""`ZooKeeperPlace`: an announcement in a node of a ZooKeeper ensemble. Uses kazoo.

::

    /path            stays
      master         the announcement; ephemeral, so it goes when the session of its master ends
      roster         stays
        RUN:RANK     a worker: its rank, name and phase; ephemeral

Every operation has a deadline. Without a majority an ensemble serves nobody, and then none of its
servers answers.
"""

import logging
import re
from contextlib import suppress
from dataclasses import dataclass
from threading import Event, Thread
from time import monotonic
from typing import Any, Final, Self

from gradwire_protocol import UnreachableError, UsageError
from gradwire_udp.discovery.announcement import Announcement, AnnouncementError
from gradwire_udp.discovery.reading import ANSWER_SECONDS, NotAnnouncedError, Reader
from gradwire_udp.sockets import show_address, split_address

ZOOKEEPER_PORT: Final = 2181
PATH_CHARACTERS_MAX: Final = 255
SERVERS_MAX: Final = 16

SESSION_SECONDS: Final = 10.0
"""How long an ensemble keeps what a dead master has announced. A master that moves is announced
that much later, and a shorter time would end sessions when a server of the ensemble restarts."""

CLOSE_SECONDS_MAX: Final = 2.0
"""For the goodbye to an ensemble. Without it, the session ends by itself."""

REDIAL_SECONDS_MAX: Final = 1.0
"""Between two rounds of tries to reach a server of the ensemble."""

MASTER_NODE: Final = "master"
ROSTER_NODE: Final = "roster"

_kazoo_logger = logging.getLogger("gradwire.discovery.kazoo")
_kazoo_logger.setLevel(logging.ERROR)  # what we say of a lost connection is enough


@dataclass(frozen=True, slots=True)
class ZooKeeperPlace:
    """A path at an ensemble."""

    servers: tuple[str, ...]
    """``host:port`` of each."""
    path: str

    @classmethod
    def parse(cls, rest: str) -> Self:
        """Return the place behind ``zk://``."""
        text = f"zk://{rest}"
        servers, _, path = rest.partition("/")
        names = path.removesuffix("/").split("/")
        if (
            len(path) > PATH_CHARACTERS_MAX
            or not path.isprintable()
            or any(name in ("", ".", "..") for name in names)
            or names[0] == "zookeeper"
            or re.search(r"[?#@]", path)
        ):
            raise UsageError(
                f"{text!r} has to name servers and a path, as zk://host:2181/gradwire/run does; "
                f"the path has at most {PATH_CHARACTERS_MAX} characters, no part of it is empty or "
                "dots, and /zookeeper is ZooKeeper's own"
            )
        if "@" in servers:
            raise UsageError(
                "zk://…@…: a password does not belong into an address, which other processes see: "
                "put USER:PASSWORD into a file, and name it with --announce-auth-file"
            )
        each = servers.split(",")
        if len(each) > SERVERS_MAX:
            raise UsageError(f"{text!r} names {len(each)} servers; the limit is {SERVERS_MAX}")
        return cls(
            tuple(show_address(split_address(server.strip(), ZOOKEEPER_PORT)) for server in each),
            "/" + "/".join(names),
        )

    @property
    def text(self) -> str:
        """How users write it."""
        return f"zk://{','.join(self.servers)}{self.path}"

    @property
    def question(self) -> str:
        """What to look at where nothing is found there."""
        return (
            f"is `gradwire master --announce {self.text}` running, and does this machine reach "
            "those servers?"
        )

    def open(self) -> Reader:
        """Return what reads there."""
        return ZooKeeperReader(self)


class Ensemble:
    """A session at an ensemble, whose operations have deadlines.

    Parameters
    ----------
    credential : str, optional
        ``user:password`` for the scheme ``digest``.

    Raises
    ------
    UsageError
        If kazoo is not installed.
    """

    def __init__(self, place: ZooKeeperPlace, credential: str | None = None) -> None:
        try:
            from kazoo.client import KazooClient  # an extra
            from kazoo.retry import KazooRetry
        except ImportError:
            raise UsageError(
                f"{place.text} needs kazoo: pip install 'gradwire[zookeeper]'"
            ) from None
        self._place = place
        self._client = KazooClient(
            hosts=",".join(place.servers),
            timeout=SESSION_SECONDS,
            auth_data=[("digest", credential)] if credential else None,
            connection_retry=KazooRetry(max_tries=-1, delay=0.1, max_delay=REDIAL_SECONDS_MAX),
            logger=_kazoo_logger,
        )
        self._connected: Event = self._client.start_async()

    @property
    def session(self) -> int | None:
        """The number of the session; None while there is none."""
        found = self._client.client_id
        return None if found is None or not self._client.connected else int(found[0])

    def wait_connected(self, seconds: float) -> None:
        """Wait until a server has let us in; `UnreachableError` where none does in time."""
        deadline = monotonic() + seconds
        while not self._client.connected:
            left = deadline - monotonic()
            if left <= 0:
                raise UnreachableError(
                    f"no ZooKeeper server lets us in at {' or '.join(self._place.servers)}"
                )
            self._connected.wait(min(left, 0.1))
            self._refuse_wrong_credential()

    def call(self, operation: str, *arguments: Any, **options: Any) -> Any:
        """Return the result of one operation of kazoo's client.

        Raises
        ------
        UnreachableError
            If there is none in `ANSWER_SECONDS`, or the session has ended.
        UsageError
            If this session may not do that.
        NoNodeError, NodeExistsError
            As kazoo says.
        """
        from kazoo import exceptions  # an extra
        from kazoo.handlers.threading import KazooTimeoutError

        try:
            result = getattr(self._client, f"{operation}_async")(*arguments, **options)
            return result.get(timeout=ANSWER_SECONDS)
        except (exceptions.NoAuthError, exceptions.AuthFailedError):
            raise UsageError(
                f"ZooKeeper does not let us {operation} {arguments[0]}: the credential in "
                "--announce-auth-file has to be one that the ACL of the node names"
            ) from None
        except (exceptions.NoNodeError, exceptions.NodeExistsError):
            raise
        except exceptions.NoChildrenForEphemeralsError:
            raise UsageError(
                f"{arguments[0]} would be below an ephemeral node, which can have none: announce "
                "at another path"
            ) from None
        except (KazooTimeoutError, exceptions.KazooException) as error:
            raise UnreachableError(
                f"no answer from ZooKeeper at {' or '.join(self._place.servers)} "
                f"({type(error).__name__})"
            ) from None

    def close(self) -> None:
        """End the session, and with it what is ephemeral; waits for that, with a limit."""
        thread = Thread(target=self._close, name="gradwire-zookeeper-end", daemon=True)
        thread.start()
        thread.join(CLOSE_SECONDS_MAX)

    def _close(self) -> None:
        with suppress(Exception):  # a server that is gone hears no goodbye
            self._client.stop()
        with suppress(Exception):
            self._client.close()

    def _refuse_wrong_credential(self) -> None:
        from kazoo.protocol.states import KeeperState  # an extra

        if self._client.client_state == KeeperState.AUTH_FAILED:
            raise UsageError("ZooKeeper refuses the credential in --announce-auth-file")


class ZooKeeperReader:
    """Reads the node again and again, in one session."""

    def __init__(self, place: ZooKeeperPlace) -> None:
        self._node = f"{place.path}/{MASTER_NODE}"
        self._ensemble = Ensemble(place)

    def read(self, seconds: float) -> Announcement:
        """Return the announcement; see `Reader.read`."""
        from kazoo.exceptions import NoNodeError  # an extra

        self._ensemble.wait_connected(min(seconds, ANSWER_SECONDS))
        try:
            content, _ = self._ensemble.call("get", self._node)
        except NoNodeError:
            raise NotAnnouncedError(f"there is no node {self._node}") from None
        try:
            return Announcement.parse(content)
        except AnnouncementError as error:
            raise AnnouncementError(
                f"the node {self._node} holds no announcement of a master: {error}"
            ) from None

    def close(self) -> None:
        """End the session."""
        self._ensemble.close()
