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
        steps=tally.steps,
        steps_deferred=tally.steps_deferred,
        steps_untrained=tally.steps_untrained,
        steps_waited=tally.steps_waited,
        updates_sent=tally.updates_sent,
        updates_delivered=membership.updates_delivered,
        updates_stable=max(
            membership.stable.get(sharing.shared.rank, 0) - membership.welcome.sequence, 0
        ),
        updates_clipped=membership.updates_clipped,
        updates_applied=tally.updates_applied,
        updates_conflated=tally.updates_conflated,
        buffers_averaged=tally.buffers_averaged,
        buffers_refused=network.worker.buffers_refused,
        reconnections=membership.reconnections,
        rebases=membership.rebases,
        repairs=sharing.shared.repair.repairs,
        blocks_repaired=sharing.shared.repair.blocks_repaired,
        elements_sent=tally.elements_sent,
        bytes_encoded=tally.bytes_encoded,
        transport=network.worker.transport,
        bytes_sent=traffic.bytes_sent,
        bytes_received=traffic.bytes_received,
        datagrams_sent=traffic.packets_sent,
        datagrams_received=traffic.packets_received,
        density=tally.density,
        threshold=tally.threshold,
        residual=sharing.thresholds.residual_statistics(),
        elements_clipped=tally.elements_clipped,
        magnitude_clipped=tally.magnitude_clipped,
        staleness=delays.staleness,
        staleness_max=delays.staleness_max,
        staleness_by_rank={r: s for r, s in delays.staleness_by_rank.items() if r in ranks},
        staleness_distribution=delays.staleness_distribution(),
        own_staleness=delays.own_staleness,
        own_staleness_distribution=delays.own_staleness_distribution(),
        residual_age_steps=delays.residual_age_steps,
        residual_age_distribution=delays.residual_age_distribution(),
        delay_steps=sharing.compensation.added_lag().total,
        momentum=tally.momentum,
        scale=tally.scale,
        rtt_seconds=network.worker.rtt,
        encode_seconds=tally.encode_seconds,
        apply_seconds=tally.apply_seconds,
        wait_seconds=tally.wait_seconds,
    )
