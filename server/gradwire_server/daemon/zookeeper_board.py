"""`ZooKeeperBoard`: the nodes of a master and its workers in a ZooKeeper ensemble.

All of them are ephemeral: they end with our session. When a session is lost, they are put up again
in a new one. With a credential, other clients can read the nodes, and not change them.
"""

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from time import monotonic
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from gradwire_protocol import UnreachableError, UsageError
from gradwire_udp.discovery.announcement import Announcement, AnnouncementError
from gradwire_udp.discovery.zookeeper import (
    MASTER_NODE,
    ROSTER_NODE,
    SESSION_SECONDS,
    Ensemble,
    ZooKeeperPlace,
)

CHANGES_MAX: Final = 100
"""Nodes of workers that one look changes at most, so that a crowd that joins keeps neither the
ensemble busy nor the announcement waiting. The rest is for the next look."""

REOPEN_SECONDS: Final = 3 * SESSION_SECONDS
"""By then the session has ended, so that a new one loses nothing."""


class TakenError(UsageError):
    """Another master is announced there."""


class Listed(NamedTuple):
    """A worker in the roster."""

    run: str
    rank: int
    name: str
    phase: str

    @property
    def node(self) -> str:
        """Name of its node."""
        return f"{quote(self.run, safe='')}:{self.rank}"

    def pack(self) -> bytes:
        """Return what its node holds, as JSON."""
        return json.dumps(self._asdict()).encode()


class ZooKeeperBoard:
    """Puts an announcement and the workers into nodes.

    Parameters
    ----------
    credential : str, optional
        ``user:password``, with which alone the nodes can be changed.
    """

    def __init__(self, place: ZooKeeperPlace, credential: str | None = None) -> None:
        self._place = place
        self._credential = credential
        self._ensemble: Ensemble | None = None
        self._session: int | None = None
        self._posted: dict[str, Listed] = {}
        """The workers whose nodes we have put up in this session, by their paths."""
        self._reached_at = monotonic()

    def post(self, announcement: Announcement, workers: Iterable[Listed]) -> None:
        """Put up the announcement and the workers, or what has changed of them.

        Raises
        ------
        TakenError
            If another master is announced there.
        UsageError
            If the ensemble lets us change nothing there, or something else stands there.
        UnreachableError
            If the ensemble does not answer.
        """
        from kazoo.exceptions import NoAuthError, NodeExistsError, NoNodeError  # an extra

        place = self._place
        try:
            ensemble = self._opened()
            roster = f"{place.path}/{ROSTER_NODE}"
            session = ensemble.session()
            if session != self._session:
                self._posted.clear()
                ensemble.call("ensure_path", roster, acl=self._acl)
                self._session = session
            self._post_master(ensemble, announcement)
            wanted = {f"{roster}/{worker.node}": worker for worker in workers}
            self._post_workers(ensemble, wanted)
        except NoAuthError:
            raise UsageError(
                f"ZooKeeper does not let this master change {place.path}: pass "
                "--announce-auth-file with a credential that the ACL there names, or announce at "
                "another path"
            ) from None
        except (NodeExistsError, NoNodeError) as error:
            self._session = None  # somebody else changes these nodes: look at all again
            raise UnreachableError(
                f"others have changed nodes below {place.path} meanwhile ({type(error).__name__})"
            ) from None
        self._reached_at = monotonic()

    def close(self) -> None:
        """End the session, and with it all of our nodes; `post` begins another one."""
        if self._ensemble is not None:
            self._ensemble.close()
        self._ensemble = self._session = None

    def _opened(self) -> Ensemble:
        """Return the ensemble; begin again where it has been out of reach for long.

        One whose data were lost takes no client that has seen them.
        """
        if self._ensemble is not None and monotonic() - self._reached_at > REOPEN_SECONDS:
            self.close()
        if self._ensemble is None:
            self._reached_at = monotonic()
            self._ensemble = Ensemble(self._place, self._credential)
        return self._ensemble

    def _post_master(self, ensemble: Ensemble, announcement: Announcement) -> None:
        from kazoo.exceptions import NoNodeError  # an extra

        node, content = f"{self._place.path}/{MASTER_NODE}", announcement.pack()
        try:
            found, status = ensemble.call("get", node)
        except NoNodeError:
            self._create(ensemble, node, content)
            return
        if status.ephemeralOwner != self._session:
            self._check_other(announcement, found, is_ephemeral=bool(status.ephemeralOwner))
            ensemble.call("delete", node, version=status.version)
            self._create(ensemble, node, content)
        elif found != content:
            ensemble.call("set", node, content)

    def _check_other(self, ours: Announcement, content: bytes, *, is_ephemeral: bool) -> None:
        """Raise if the node there may be that of a master that lives."""
        node = f"{self._place.path}/{MASTER_NODE}"
        try:
            other = Announcement.parse(content)
        except AnnouncementError as error:
            raise UsageError(
                f"the node {node} holds no announcement of a master: {error}. Delete it, or "
                "announce this master at another path"
            ) from None
        if ours.replaces(other):
            return
        if not is_ephemeral:
            raise UsageError(
                f"the node {node}, with a master at {other.masters[0]}, is not ephemeral, so no "
                "master has made it: delete it, or announce this master at another path"
            )
        raise TakenError(
            f"another master, at {other.masters[0]} on {other.host or 'some host'}, is announced "
            f"at {self._place.text}: stop it, or announce this one at another path"
        )

    def _post_workers(self, ensemble: Ensemble, wanted: Mapping[str, Listed]) -> None:
        """Put up, change and delete nodes of workers, at most `CHANGES_MAX`."""
        from kazoo.exceptions import NoNodeError  # an extra

        gone = sorted(self._posted.keys() - wanted.keys())[:CHANGES_MAX]
        for node in gone:
            with suppress(NoNodeError):
                ensemble.call("delete", node)
            del self._posted[node]
        changed = [node for node in wanted if self._posted.get(node) != wanted[node]]
        for node in changed[: CHANGES_MAX - len(gone)]:
            status = ensemble.call("exists", node)
            if status is not None and status.ephemeralOwner != self._session:
                ensemble.call("delete", node)  # of a session before ours that has not ended yet
                status = None
            if status is None:
                self._create(ensemble, node, wanted[node].pack())
            else:
                ensemble.call("set", node, wanted[node].pack())
            self._posted[node] = wanted[node]

    def _create(self, ensemble: Ensemble, node: str, content: bytes) -> None:
        ensemble.call("create", node, content, acl=self._acl, ephemeral=True)

    @property
    def _acl(self) -> Any:
        """Return who may do what: without a credential everyone everything."""
        from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, READ_ACL_UNSAFE  # an extra

        return OPEN_ACL_UNSAFE if self._credential is None else CREATOR_ALL_ACL + READ_ACL_UNSAFE
