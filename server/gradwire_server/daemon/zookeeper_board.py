"""`ZooKeeperBoard`: an announcement in a ZooKeeper ensemble, and the roster beside it.

All of it is ephemeral: it ends with our session. When a session is lost, a new one puts it up
again. With a credential, other clients can read the nodes, and not change them.
"""

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from time import monotonic
from typing import Any, Final

from gradwire_protocol import UnreachableError
from gradwire_server.daemon.board import Standing, TakenError, taken
from gradwire_udp.discovery.announcement import Announcement, AnnouncementError
from gradwire_udp.discovery.reading import ANSWER_SECONDS
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


class ZooKeeperBoard:
    """Puts an announcement and the workers into nodes.

    Parameters
    ----------
    credential : str, optional
        ``user:password``, for which alone the nodes can be changed.
    """

    lasts_seconds = SESSION_SECONDS

    def __init__(self, place: ZooKeeperPlace, credential: str | None = None) -> None:
        self._place = place
        self._credential = credential
        self._ensemble = Ensemble(place, credential)
        self._session: int | None = None
        self._posted: Announcement | None = None
        self._workers: dict[str, bytes] = {}
        """What we have put up in this session."""
        self._others = Standing()
        self._reached_at = monotonic()

    def post(self, announcement: Announcement, workers: Mapping[str, bytes]) -> None:
        """Put it up, or what has changed; see `Board.post`."""
        self._reopen_if_due()
        ensemble = self._ensemble
        ensemble.wait_connected(ANSWER_SECONDS)
        session = ensemble.session
        if session is None:
            raise UnreachableError("the session at ZooKeeper has just ended")
        if session != self._session:
            self._session, self._posted = session, None
            self._workers.clear()
            ensemble.call("ensure_path", f"{self._place.path}/{ROSTER_NODE}", acl=self._acl)
        self._post_master(announcement)
        self._post_workers(workers)
        self._reached_at = monotonic()

    def withdraw(self) -> None:
        """Delete our nodes, if there are any."""
        if self._posted is None and not self._workers:
            return
        session = self._ensemble.session
        if session is None:
            raise UnreachableError("no session at ZooKeeper to take the announcement down in")
        if self._session in (None, session):
            self._session = session
            self._post_workers({})
            if self._workers:
                return
            self._delete_ours(self._master_node)
        self._workers.clear()  # they ended with their session
        self._posted = None

    def close(self) -> None:
        """End the session, and with it all of our nodes."""
        self._ensemble.close()

    def _reopen_if_due(self) -> None:
        """Begin again where the ensemble has been out of reach for long.

        One whose data were lost takes no client that has seen them.
        """
        if monotonic() - self._reached_at > REOPEN_SECONDS:
            self._reached_at = monotonic()
            self._ensemble.close()
            self._ensemble = Ensemble(self._place, self._credential)

    # The announcement.

    @property
    def _master_node(self) -> str:
        return f"{self._place.path}/{MASTER_NODE}"

    def _post_master(self, announcement: Announcement) -> None:
        from kazoo.exceptions import NoNodeError  # an extra

        ensemble, node = self._ensemble, self._master_node
        content = announcement.written_at(time.time()).pack()
        try:
            found, status = ensemble.call("get", node)
            if status.ephemeralOwner != self._session:
                self._check_other(announcement, found, status)
                ensemble.call("delete", node, version=status.version)
            elif announcement == self._posted:
                return
            else:
                ensemble.call("set", node, content)
                self._posted = announcement
                return
        except NoNodeError:
            pass  # or it has gone meanwhile
        self._create(node, content)
        self._posted = announcement

    def _check_other(self, ours: Announcement, content: bytes, status: Any) -> None:
        """Raise if the node is that of a master that may live."""
        place = self._place.text
        try:
            other = Announcement.parse(content)
        except AnnouncementError as error:
            raise TakenError(
                f"{self._master_node} holds no announcement of a master: {error}. Delete it, or "
                "announce this master at another path"
            ) from None
        if ours.replaces(other):
            return
        if status.ephemeralOwner:
            self._others.check(other, (status.czxid, status.ephemeralOwner), place)
        raise taken(other, place)

    # The workers.

    def _post_workers(self, workers: Mapping[str, bytes]) -> None:
        """Put up, change and delete nodes of workers, at most `CHANGES_MAX`."""
        gone = self._workers.keys() - workers.keys()
        changed = {
            name: content for name, content in workers.items() if self._workers.get(name) != content
        }
        for name in sorted(gone)[:CHANGES_MAX]:
            self._delete_ours(self._worker_node(name))
            del self._workers[name]
        left = max(CHANGES_MAX - len(gone), 0)
        for name, content in list(changed.items())[:left]:
            self._post_worker(name, content)
            self._workers[name] = content

    def _worker_node(self, name: str) -> str:
        return f"{self._place.path}/{ROSTER_NODE}/{name}"

    def _post_worker(self, name: str, content: bytes) -> None:
        from kazoo.exceptions import NoNodeError  # an extra

        ensemble, node = self._ensemble, self._worker_node(name)
        if name in self._workers:
            try:
                ensemble.call("set", node, content)
            except NoNodeError:
                pass  # somebody has deleted it
            else:
                return
        if self._owner_of(node) is not None:
            self._delete(node)  # of a session before ours, whose end the ensemble has not noticed
        self._create(node, content)

    def _create(self, node: str, content: bytes) -> None:
        """Create a node; `UnreachableError` where others change the tree meanwhile."""
        from kazoo.exceptions import NodeExistsError, NoNodeError  # an extra

        try:
            self._ensemble.call("create", node, content, acl=self._acl, ephemeral=True)
        except NodeExistsError:
            raise UnreachableError(f"another master was faster to take {node}") from None
        except NoNodeError:
            self._session = None  # somebody has deleted the folder: make it at the next look
            raise UnreachableError(f"the folder of {node} was deleted") from None

    def _owner_of(self, node: str) -> int | None:
        status = self._ensemble.call("exists", node)
        return None if status is None else int(status.ephemeralOwner)

    def _delete_ours(self, node: str) -> None:
        """Delete a node, unless another master has put up its own in its place."""
        if self._owner_of(node) == self._session:
            self._delete(node)

    def _delete(self, node: str) -> None:
        from kazoo.exceptions import NoNodeError  # an extra

        with suppress(NoNodeError):
            self._ensemble.call("delete", node)

    @property
    def _acl(self) -> Any:
        """Return who may do what: without a credential everyone everything."""
        from kazoo.security import (  # an extra
            CREATOR_ALL_ACL,
            OPEN_ACL_UNSAFE,
            READ_ACL_UNSAFE,
        )

        return OPEN_ACL_UNSAFE if self._credential is None else CREATOR_ALL_ACL + READ_ACL_UNSAFE


def worker_content(rank: int, name: str, phase: str, run: str) -> bytes:
    """Return what the node of a worker holds."""
    return json.dumps({"run": run, "rank": rank, "name": name, "phase": phase}).encode()
