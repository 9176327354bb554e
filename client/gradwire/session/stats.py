"""`stats_of`: a session's `SessionStats`, gathered from where they are counted."""

from gradwire.replica.sharing import Sharing
from gradwire.replica.stats import SessionStats
from gradwire.threads.membership import Membership
from gradwire.threads.network import NetworkThread
from gradwire.worker.worker import Worker


def stats_of(
    sharing: Sharing, membership: Membership, network: NetworkThread[Worker]
) -> SessionStats:
    """Return what a session has done so far."""
    assert membership.welcome is not None
    tally, traffic = sharing.tally, network.traffic
    delays = sharing.delays
    ranks = {peer.rank for peer in membership.peers}
    return SessionStats(
        **tally.counts(),
        updates_delivered=membership.updates_delivered,
        updates_stable=max(
            membership.stable.get(sharing.shared.rank, 0) - membership.welcome.sequence, 0
        ),
        updates_clipped=membership.updates_clipped,
        buffers_refused=network.worker.buffers_refused,
        reconnections=membership.reconnections,
        rebases=membership.rebases,
        repairs=sharing.shared.repair.repairs,
        blocks_repaired=sharing.shared.repair.blocks_repaired,
        transport=network.worker.transport,
        bytes_sent=traffic.bytes_sent,
        bytes_received=traffic.bytes_received,
        datagrams_sent=traffic.packets_sent,
        datagrams_received=traffic.packets_received,
        residual=sharing.thresholds.residual_statistics(),
        staleness=delays.staleness,
        staleness_max=delays.staleness_max,
        staleness_by_rank={r: s for r, s in delays.staleness_by_rank.items() if r in ranks},
        staleness_distribution=delays.staleness_distribution(),
        own_staleness=delays.own_staleness,
        own_staleness_distribution=delays.own_staleness_distribution(),
        residual_age_steps=delays.residual_age_steps,
        residual_age_distribution=delays.residual_age_distribution(),
        delay_steps=sharing.compensation.added_lag().total,
        rtt_seconds=network.worker.rtt,
    )
