"""What a step of every worker takes: the arithmetic of an estimate.

In a round every worker makes one step, sends one update, and receives those of the W - 1 others.
With updates of B bytes and h hits, a round takes

=======================  =======================================================  ==============
resource                 seconds a round                                          when it is short
=======================  =======================================================  ==============
encode                   step + parameters x pass + h x encode                    the step is longer
apply                    (W - 1) x (apply + h x apply per hit)                    the step is longer
network thread           W x (network + B x network per byte)                     added up
worker's link, up        B and the acknowledgements of W - 1 updates              put off
worker's link, down      W - 1 times B and acknowledgements                       added up
master's link, in        W times B and acknowledgements of W (W - 1)              put off
master's link, out       W (W - 1) times B and acknowledgements of W              added up
master's processor       W x (update + h x per hit + B x per byte                 put off
                         + (W - 1) x (delivery + B x per byte))
=======================  =======================================================  ==============

Where M masters share the parameters, each of them has an Mth of h and B, and a link and a processor
of its own; a worker has M updates to handle and to apply for each one.

With R relays, each has P = W / R workers. It sends the master the sum of their updates, and the
master sends each relay the sum of all. A sum of n updates has B(n) bytes and h(n) hits: all
elements that one of them changes, at random places. Relays send a sum as soon as the last one was
taken, so an idle master gets more and smaller ones. This is the least that a step can take:

=======================  =======================================================  ==============
encode                   as above                                                 the step is longer
apply                    apply + h(W) x apply per hit                             the step is longer
network thread           handling B, and B(W)                                     added up
worker's link, up        B and the acknowledgements of B(W)                       put off
worker's link, down      B(W) and acknowledgements                                added up
relay's link             the larger of P times B and B(W), P times B(W) and B(P)  added up
relay's processor        P x (update + h x per hit + B x per byte)                put off
                         + h(P) x merge + delivery of B(P), P deliveries of B(W)
master's link, in        R times B(P) and acknowledgements                        added up
master's link, out       R times B(W) and acknowledgements                        added up
master's processor       R x (update + h(P) x per hit + B(P) x per byte)          added up
                         + h(W) x merge + R deliveries of B(W)
=======================  =======================================================  ==============
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final

from gradwire.cli.estimate.inputs import Inputs
from gradwire.cli.estimate.sizes import Traffic, ack_link_bytes, link_bytes

NETWORK: Final = "worker's network thread"
UP: Final = "worker's link, up"
DOWN: Final = "worker's link, down"
INTO: Final = "master's link, in"
OUT: Final = "master's link, out"
MASTER: Final = "master's processor"
RELAY_LINK: Final = "relay's link"
RELAY: Final = "relay's processor"

MEAN_HITS: Final = 2.0
"""Rounding, encoding and adding an element of a mean or a sum, over decoding and adding one of an
update: 1.4 to 2.4 on an AMD EPYC."""


class Kind(Enum):
    """The consequence of a short resource."""

    TRAINS = "the step is longer"
    PUTS_OFF = "updates are put off"
    ADDS_UP = "updates are added up"


@dataclass(frozen=True, slots=True)
class Resource:
    """What a round takes of one resource."""

    name: str
    seconds: float
    """For one step of every worker."""
    kind: Kind
    load: float = 0.0
    """`seconds` over a step; above 1 the resource is short."""

    @property
    def is_short(self) -> bool:
        """Whether updates are put off, or added up, because of this resource."""
        return self.kind is not Kind.TRAINS and self.load > 1


def demands(inputs: Inputs) -> tuple[Resource, ...]:
    """Return what a round takes of each resource, by the tables above."""
    return _with_relays(inputs) if inputs.relays else _without_relays(inputs)


def _without_relays(inputs: Inputs) -> tuple[Resource, ...]:
    costs, workers, masters = inputs.costs, inputs.workers, inputs.masters
    hits, size = inputs.hits / masters, inputs.update_bytes / masters
    peers = workers - 1
    master = workers * (costs.to_take_in(hits, size) + peers * costs.to_pass_on(size))
    lines = lines_of(inputs, inputs.traffic)
    return (
        Resource("encode", costs.to_encode(inputs.parameters, inputs.hits), Kind.TRAINS),
        Resource("decode and apply", peers * masters * costs.to_apply(hits), Kind.TRAINS),
        Resource(NETWORK, workers * masters * costs.to_handle(size), Kind.ADDS_UP),
        Resource(UP, lines.up, Kind.PUTS_OFF),
        Resource(DOWN, lines.down, Kind.ADDS_UP),
        Resource(INTO, lines.into, Kind.PUTS_OFF),
        Resource(OUT, lines.out, Kind.ADDS_UP),
        Resource(MASTER, master, Kind.PUTS_OFF),
    )


def _with_relays(inputs: Inputs) -> tuple[Resource, ...]:
    costs, masters = inputs.costs, inputs.masters
    relays = min(inputs.relays, inputs.workers)
    peers = inputs.workers / relays
    size = inputs.update_bytes / masters
    of_peers, of_all = inputs.sum_bytes(peers) / masters, inputs.sum_bytes(inputs.workers) / masters
    hits = inputs.hits / masters
    hits_of_peers = inputs.sum_hits(peers) / masters
    hits_of_all = inputs.sum_hits(inputs.workers) / masters
    merge = MEAN_HITS * costs.master_seconds_per_hit
    relay = (
        peers * costs.to_take_in(hits, size)
        + hits_of_peers * merge
        + costs.to_pass_on(of_peers)
        + peers * costs.to_pass_on(of_all)
    )
    master = (
        relays * costs.to_take_in(hits_of_peers, of_peers)
        + hits_of_all * merge
        + relays * costs.to_pass_on(of_all)
    )
    up, down = inputs.traffic.up / masters, inputs.traffic.down / masters
    sum_up = link_bytes(of_peers) + ack_link_bytes(of_all)
    sum_down = link_bytes(of_all) + ack_link_bytes(of_peers)
    relay_link = max(peers * up + sum_down, peers * down + sum_up)
    return (
        Resource("encode", costs.to_encode(inputs.parameters, inputs.hits), Kind.TRAINS),
        Resource("decode and apply", masters * costs.to_apply(hits_of_all), Kind.TRAINS),
        Resource(
            NETWORK, masters * (costs.to_handle(size) + costs.to_handle(of_all)), Kind.ADDS_UP
        ),
        Resource(UP, 8 * inputs.traffic.up / inputs.link_up, Kind.PUTS_OFF),
        Resource(DOWN, 8 * inputs.traffic.down / inputs.link, Kind.ADDS_UP),
        Resource(RELAY_LINK, 8 * relay_link / inputs.master_link, Kind.ADDS_UP),
        Resource(RELAY, relay, Kind.PUTS_OFF),
        Resource(INTO, 8 * relays * sum_up / inputs.master_link, Kind.ADDS_UP),
        Resource(OUT, 8 * relays * sum_down / inputs.master_link, Kind.ADDS_UP),
        Resource(MASTER, master, Kind.ADDS_UP),
    )


@dataclass(frozen=True, slots=True)
class Lines:
    """Seconds in which the links of a worker and of the master carry something."""

    up: float
    down: float
    into: float
    out: float


def lines_of(inputs: Inputs, traffic: Traffic) -> Lines:
    """Return how long links are busy with the traffic of one worker, and a master's with all."""
    up, down = 8 * traffic.up, 8 * traffic.down
    all_up, all_down = inputs.workers * up, inputs.workers * down
    return Lines(
        up=up / inputs.link_up,
        down=down / inputs.link,
        into=all_up / inputs.masters / inputs.master_link,
        out=all_down / inputs.masters / inputs.master_link,
    )
