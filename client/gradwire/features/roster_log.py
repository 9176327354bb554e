"""`RosterLog`: logs which workers have joined and left while this one trains."""

import logging

from gradwire.participant.feature import Feature
from gradwire.worker.membership import Membership

logger = logging.getLogger("gradwire.session")


class RosterLog(Feature):
    """Compares the roster of `membership` with that of the step before."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._roster = membership.peers
        self._names = membership.names

    def after_step(self) -> None:
        """Log which workers have come, and which are gone."""
        if self._membership.peers is self._roster:
            return
        before, finished = self._names, {peer.rank for peer in self._roster if peer.finished}
        self._roster = self._membership.peers
        self._names = now = self._membership.names
        for what, ranks in (
            ("has joined", [rank for rank in now if now[rank] != before.get(rank)]),
            ("is gone", [rank for rank in before.keys() - finished if rank not in now]),
        ):
            for rank in sorted(ranks):
                name = now.get(rank, before.get(rank))
                total = f"{len(now)} worker{'s' * (len(now) != 1)}"
                logger.info("rank %d (%s) %s: %s now", rank, name, what, total)
