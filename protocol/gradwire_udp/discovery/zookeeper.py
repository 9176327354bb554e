"""`ZooKeeperPlace`: an announcement in a node of a ZooKeeper ensemble. Uses kazoo.

::

    /path            stays
      master         the announcement; ephemeral: it goes when the session of its master ends
      roster         stays
        RUN:RANK     a worker: its run, rank, name and phase; ephemeral

Every operation has a deadline. Without a majority an ensemble serves nobody, and then none of its
servers answers.
"""

import logging
from contextlib import suppress
from dataclasses import dataclass
from threading import Thread
from time import monotonic
from typing import Any, Final, Self

from gradwire_protocol import UnreachableError, UsageError
from gradwire_udp.discovery.announcement import (
    ANSWER_SECONDS,
    Announcement,
    AnnouncementError,
    NotAnnouncedError,
)
from gradwire_udp.sockets import show_address, split_address

ZOOKEEPER_PORT: Final = 2181
PATH_CHARACTERS_MAX: Final = 255
SERVERS_MAX: Final = 16

SESSION_SECONDS: Final = 10.0
"""How long an ensemble keeps what a dead master has announced. With a shorter time, sessions would
end when a server of the ensemble restarts."""

POLL_SECONDS: Final = 0.05
CLOSE_SECONDS_MAX: Final = 2.0
"""For the goodbye to an ensemble. Without it, the session ends by itself."""

REDIAL_SECONDS_MAX: Final = 1.0
"""Between two rounds of tries to reach a server of the ensemble."""

MASTER_NODE: Final = "master"
ROSTER_NODE: Final = "roster"

_kazoo_logger = logging.getLogger("gradwire.discovery.kazoo")
_kazoo_logger.setLevel(logging.CRITICAL)  # what we say of a lost connection is enough


@dataclass(frozen=True, slots=True)
class ZooKeeperPlace:
    """A path at an ensemble."""

    servers: tuple[str, ...]
    """``host:port`` of each."""
    path: str

    @classmethod
    def parse(cls, rest: str) -> Self:
        """Return the place behind ``zk://``.

        Raises
        ------
        UsageError
            If it does not name servers and a path.
        """
        servers, _, path = rest.partition("/")
        if "@" in servers:  # not repeated: it may be a password
            raise UsageError(
                "zk://…@…: a password does not belong into an address, which other processes see: "
                "put USER:PASSWORD into a file, and name it with --announce-auth-file"
            )
        text = f"zk://{rest}"
        names = path.removesuffix("/").split("/")
        if (
            len(path) > PATH_CHARACTERS_MAX
            or not path.isprintable()
            or any(name in ("", ".", "..") for name in names)
            or names[0] == "zookeeper"
        ):
            raise UsageError(
                f"{text!r} has to name servers and a path, as zk://host:2181/gradwire/run does; "
                f"the path has at most {PATH_CHARACTERS_MAX} characters, no part of it is empty or "
                "dots, and /zookeeper is ZooKeeper's own"
            )
        each = servers.split(",")
        if len(each) > SERVERS_MAX:
            raise UsageError(f"{text!r} names {len(each)} servers; the limit is {SERVERS_MAX}")
        addresses = [split_address(server.strip(), ZOOKEEPER_PORT) for server in each]
        return cls(tuple(map(show_address, addresses)), "/" + "/".join(names))

    @property
    def text(self) -> str:
        """How users write it."""
        return f"zk://{','.join(self.servers)}{self.path}"

    @property
    def is_near(self) -> bool:
        """Whether all servers are on this machine."""
        hosts = [split_address(server)[0] for server in self.servers]
        return all(host in ("localhost", "::1") or host.startswith("127.") for host in hosts)

    @property
    def question(self) -> str:
        """What to check where nothing is found there."""
        return (
            f"is `gradwire master --announce {self.text}` running, and does this machine reach "
            "those servers?"
        )

    def open(self) -> "ZooKeeperReader":
        """Return what reads there; `UsageError` without kazoo."""
        return ZooKeeperReader(self)


def require_kazoo(place: ZooKeeperPlace) -> None:
    """Raise `UsageError` if kazoo is not installed."""
    try:
        import kazoo  # noqa: F401  # an extra
    except ImportError:
        raise UsageError(f"{place.text} needs kazoo: pip install 'gradwire[zookeeper]'") from None


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
        require_kazoo(place)
        from kazoo.client import KazooClient  # an extra
        from kazoo.retry import KazooRetry

        self._servers = " or ".join(place.servers)
        self._client = KazooClient(
            hosts=",".join(place.servers),
            timeout=SESSION_SECONDS,
            auth_data=[("digest", credential)] if credential else None,
            connection_retry=KazooRetry(max_tries=-1, delay=0.1, max_delay=REDIAL_SECONDS_MAX),
            logger=_kazoo_logger,
        )
        self._connected = self._client.start_async()

    def session(self) -> int:
        """Wait until a server has let us in; return the number of the session.

        Raises `UnreachableError` where none does in `ANSWER_SECONDS`.
        """
        deadline = monotonic() + ANSWER_SECONDS
        while True:
            found = self._client.client_id
            if self._client.connected and found is not None:
                return int(found[0])
            if monotonic() >= deadline:
                raise UnreachableError(f"no ZooKeeper server lets us in at {self._servers}")
            self._connected.wait(POLL_SECONDS)

    def call(self, operation: str, path: str, *arguments: Any, **options: Any) -> Any:
        """Return the result of one operation of kazoo's client.

        Raises
        ------
        UnreachableError
            If there is none in `ANSWER_SECONDS`, or the session has ended.
        NoAuthError, NoNodeError, NodeExistsError
            As kazoo says.
        """
        from kazoo import exceptions  # an extra
        from kazoo.handlers.threading import KazooTimeoutError

        try:
            result = getattr(self._client, f"{operation}_async")(path, *arguments, **options)
            return result.get(timeout=ANSWER_SECONDS)
        except (exceptions.NoAuthError, exceptions.NoNodeError, exceptions.NodeExistsError):
            raise
        except (KazooTimeoutError, exceptions.KazooException) as error:
            raise UnreachableError(
                f"ZooKeeper at {self._servers} did not {operation} {path} ({type(error).__name__})"
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


class ZooKeeperReader:
    """Reads the node again and again, in one session."""

    def __init__(self, place: ZooKeeperPlace) -> None:
        self._node = f"{place.path}/{MASTER_NODE}"
        self._ensemble = Ensemble(place)

    def read(self) -> Announcement:
        """Return the announcement; blocks for as long as answers may take.

        Raises
        ------
        NotAnnouncedError
            If there is none.
        UnreachableError
            If the ensemble does not answer in time.
        UsageError
            If trying again cannot help.
        """
        from kazoo.exceptions import NoAuthError, NoNodeError  # an extra

        self._ensemble.session()
        try:
            content, _ = self._ensemble.call("get", self._node)
        except NoNodeError:
            raise NotAnnouncedError(f"there is no node {self._node}") from None
        except NoAuthError:
            raise UsageError(
                f"ZooKeeper does not let workers read {self._node}: its ACL has to let everyone "
                "read, as that of a node which gradwire master makes does"
            ) from None
        try:
            return Announcement.parse(content)
        except AnnouncementError as error:
            raise AnnouncementError(
                f"the node {self._node} holds no announcement of a master: {error}"
            ) from None

    def close(self) -> None:
        """End the session."""
        self._ensemble.close()
