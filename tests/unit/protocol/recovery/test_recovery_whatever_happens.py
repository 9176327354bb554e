"""Whatever is sent, acknowledged, lost and late, every packet is counted once.

The machine does what loss recovery does a second time, in the simplest way there is: with a dict of
packets, all of which are looked at every time.
"""

from copy import deepcopy
from dataclasses import dataclass, field
from math import inf

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gradwire_protocol import ViolationError
from gradwire_protocol.limits import (
    ACK_DELAY_SECONDS_MAX,
    GRANULARITY_SECONDS,
    LONG_SILENCE_PROBE_SECONDS,
    LONG_SILENCE_SECONDS,
    PACKET_THRESHOLD,
    PACKET_THRESHOLD_MAX,
    PERSISTENT_CONGESTION_TIMEOUTS,
    PROBE_BACKOFF,
    RTT_DOUBTED_SECONDS,
    RTT_DOUBTED_TIMEOUTS,
    TIME_THRESHOLD,
    TIME_THRESHOLD_MAX,
)
from gradwire_protocol.recovery.recovery import Outcome, Recovery
from gradwire_protocol.recovery.rtt import RttEstimator
from gradwire_protocol.recovery.sent_packets import Fate, PacketContents
from gradwire_protocol.wire.frames import Ack
from support.acks import ack
from support.sending import Diary
from support.tiers import examples

TIMES = st.sampled_from([0.0, 0.0001, 0.01, 0.03, 0.5])
"""What passes before something happens."""

SIZES = st.integers(28, 8900)


@dataclass(slots=True)
class Packet:
    """All there is to know of one packet."""

    size: int
    sent_at: float
    fate: int
    train: int = -1
    fragment: tuple[int, int] | None = None
    contents: PacketContents | None = None

    @property
    def is_size_probe(self) -> bool:
        """Whether its loss says nothing."""
        return self.contents is not None and self.contents.probe_bytes > 0


@dataclass(slots=True)
class Naive:
    """Loss recovery with a dict."""

    packets: dict[int, Packet] = field(default_factory=dict)
    rtt: RttEstimator = field(default_factory=RttEstimator)
    low: int = 0
    largest_acked: int = -1
    probe_from: float = 0.0
    heard_at: float = inf
    doubted_at: float = inf
    packet_threshold: int = PACKET_THRESHOLD
    time_threshold: float = TIME_THRESHOLD
    sampled_at: float = inf
    loss_deadline: float | None = None
    timeouts: int = 0
    collapses: int = 0

    @property
    def flying(self) -> dict[int, Packet]:
        return {n: packet for n, packet in self.packets.items() if packet.fate == Fate.IN_FLIGHT}

    @property
    def probe_timeout(self) -> float:
        """Without backoff."""
        return self.rtt.probe_timeout(ACK_DELAY_SECONDS_MAX)

    @property
    def deadline(self) -> float | None:
        """When there is something to do."""
        if self.loss_deadline is not None or not self.flying:
            return self.loss_deadline
        if not self.timeouts:
            return self.probe_from + self.probe_timeout
        wait = PROBE_BACKOFF * self.probe_timeout
        if self.probe_from - self.heard_at >= LONG_SILENCE_SECONDS:
            wait = max(wait, LONG_SILENCE_PROBE_SECONDS)
        return self.probe_from + wait

    def acknowledge(self, named: set[int], now: float) -> tuple[list[int], list[int], list[int]]:
        """Return what has arrived for the first time, what was late, and what is lost."""
        named = {number for number in named if number >= self.low}
        late = sorted(n for n in named if self.packets[n].fate == Fate.LOST)
        new = sorted(n for n in named if self.packets[n].fate == Fate.IN_FLIGHT)
        self.be_patient(late, now)
        told = [n for n in named if self.packets[n].fate == Fate.UNASKED]
        for number in (*late, *new, *told):
            self.packets[number].fate = Fate.ACKED
        return new, late, self.learn(new, named, now)

    def be_patient(self, late: list[int], now: float) -> None:
        """Wait for packets as late as these ones from now on."""
        for number in late:
            behind = self.largest_acked - number + 1
            lateness = now - self.packets[number].sent_at - self.rtt.smoothed
            patience = 1 + 1.25 * lateness / self.rtt.smoothed
            self.packet_threshold = max(self.packet_threshold, behind)
            self.time_threshold = max(self.time_threshold, patience)
        self.packet_threshold = min(self.packet_threshold, PACKET_THRESHOLD_MAX)
        self.time_threshold = min(self.time_threshold, TIME_THRESHOLD_MAX)

    def measure(self, sample: float, number: int, now: float) -> None:
        """Take a sample of the round trip, unless it was probably a pause."""
        patience = max(RTT_DOUBTED_TIMEOUTS * self.probe_timeout, RTT_DOUBTED_SECONDS)
        if not self.rtt.latest or sample <= patience:
            self.doubted_at = inf
        elif self.doubted_at < inf and self.packets[number].sent_at <= self.doubted_at:
            return
        elif self.doubted_at == inf and now - self.heard_at >= sample / 2:
            self.doubted_at = now
            return
        self.rtt.update(sample, 0.0)
        self.sampled_at = min(self.sampled_at, now)

    def learn(self, new: list[int], named: set[int], now: float) -> list[int]:
        """Return what is lost, now that these have arrived."""
        largest = max(named, default=-1)
        self.largest_acked = max(self.largest_acked, largest)
        if not new:
            return []
        if new[-1] == largest:
            self.measure(max(now - self.packets[largest].sent_at, 1e-6), largest, now)
        self.timeouts = 0
        self.heard_at = self.probe_from = now
        lost = self.lose(now)
        old = now - 3 * self.probe_timeout
        for packet in self.packets.values():
            if packet.fate == Fate.LOST and packet.sent_at <= old:
                packet.fate = Fate.ACKED  # nobody will ever know
        waiting = [n for n, p in self.packets.items() if p.fate in (Fate.IN_FLIGHT, Fate.LOST)]
        self.low = min(waiting, default=len(self.packets))
        return lost

    def lose(self, now: float) -> list[int]:
        """Return what is lost now."""
        delay = self.time_threshold * max(self.rtt.smoothed, self.rtt.latest)
        delay = max(delay, GRANULARITY_SECONDS)
        lost = []
        self.loss_deadline = None
        for number, packet in self.flying.items():
            overtaken = number <= self.largest_acked - self.packet_threshold
            if number < self.largest_acked:
                if overtaken or packet.sent_at <= now - delay + 1e-7:
                    lost.append(number)
                elif self.loss_deadline is None:
                    self.loss_deadline = packet.sent_at + delay
        for number in lost:
            self.packets[number].fate = Fate.LOST
        if not all(self.packets[number].is_size_probe for number in lost):
            self.look_for_collapse(lost)
        return lost

    def look_for_collapse(self, lost: list[int]) -> None:
        """Notice when nothing got through for a long time."""
        arrived = [n for n, packet in self.packets.items() if packet.fate == Fate.ACKED]
        since = max((n for n in arrived if lost[0] < n < lost[-1]), default=-1)
        times = [self.packets[n].sent_at for n in lost if n > since]
        times = [time for time in times if time > self.sampled_at]
        limit = PERSISTENT_CONGESTION_TIMEOUTS * self.probe_timeout
        self.collapses += bool(times) and times[-1] - times[0] > limit


class Bookkeeping(RuleBasedStateMachine):
    """Loss recovery, and the same with a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.diary = Diary()
        self.recovery = Recovery(self.diary)
        self.naive = Naive()
        self.now = 1.0
        self.told_lost = self.told_acked = 0

    # What is sent.

    @rule(after=TIMES, n=st.integers(1, 70), size=SIZES, last=SIZES)
    def send_a_train(self, after: float, n: int, size: int, last: int) -> None:
        self.now += after
        self.begin_timeout()
        number = self.recovery.sent.next_number
        last = min(size, last)
        self.recovery.on_train(range(n), number, size, last, app_limited=False, now=self.now)
        train = len(self.diary.sent) - 1
        for i in range(n):
            self.naive.packets[number + i] = Packet(
                size if i < n - 1 else last, self.now, Fate.IN_FLIGHT, train, (number, i)
            )

    def begin_timeout(self) -> None:
        """Note that something is sent that asks for an acknowledgement."""
        if not self.naive.flying:
            self.naive.probe_from = self.now

    @rule(
        after=TIMES,
        size=SIZES,
        kind=st.sampled_from(["nothing", "message", "size probe", "acknowledgement"]),
    )
    def send_something_else(self, after: float, size: int, kind: str) -> None:
        self.now += after
        number = self.recovery.sent.next_number
        contents = {
            "nothing": None,
            "message": PacketContents(fragments=[(number, 0)]),
            "size probe": PacketContents(probe_bytes=size),
            "acknowledgement": PacketContents(ack_largest=number),
        }[kind]
        eliciting = kind != "acknowledgement"
        if eliciting:
            self.begin_timeout()
        self.recovery.on_packet(size, contents, eliciting=eliciting, now=self.now)
        fate, train = Fate.UNASKED, -1
        if eliciting:
            fate, train = Fate.IN_FLIGHT, len(self.diary.sent) - 1
        packet = Packet(size, self.now, fate, train, None, contents)
        self.naive.packets[number] = packet

    @rule(after=TIMES)
    def leave_a_number_out(self, after: float) -> None:
        self.now += after
        number = self.recovery.sent.next_number
        self.recovery.sent.skip_number()
        self.naive.packets[number] = Packet(0, self.now, Fate.SKIPPED)

    # What is heard.

    @precondition(lambda self: self.naive.packets)
    @rule(
        after=TIMES,
        gaps=st.lists(st.tuples(st.integers(0, 20), st.integers(1, 60)), min_size=1, max_size=30),
        behind=st.sampled_from([0, 0, 1, 5, 40]),
    )
    def acknowledge(self, after: float, gaps: list[tuple[int, int]], behind: int) -> None:
        """Name runs with gaps between, newest first; what was left out is named by nobody."""
        self.now += after
        named, at = set[int](), len(self.naive.packets) - 1 - behind
        for gap, run in gaps:
            named |= set(range(max(at - run + 1, 0), at + 1))
            at -= run + gap
        self.hear({n for n in named if self.naive.packets[n].fate != Fate.SKIPPED})

    @precondition(lambda self: self.naive.packets)
    @rule(after=TIMES)
    def acknowledge_everything(self, after: float) -> None:
        self.now += after
        sent = self.naive.packets.items()
        self.hear({n for n, packet in sent if packet.fate != Fate.SKIPPED})

    def hear(self, named: set[int]) -> None:
        if not named:
            return
        before = len(self.diary.acks)
        outcome = self.recovery.on_ack(self.ack_of(named), self.now)
        new, late, lost = self.naive.acknowledge(named, self.now)
        self.check(outcome, lost)

        packets = self.naive.packets
        assert outcome.acked_bytes == sum(packets[n].size for n in new)
        assert outcome.spurious_losses == len(late)
        sizes = [packets[n].size for n in (*new, *late)]
        assert outcome.largest_acked_bytes == max(sizes, default=0)
        fragments = {packets[n].fragment for n in (*new, *late)} - {None}
        assert self.fragments_of(outcome) == sorted(fragments, key=str)
        assert len(self.diary.acks) == before + bool(new)
        if new:
            self.check_sample(outcome, new[-1])

    def check_sample(self, outcome: Outcome, newest: int) -> None:
        sample, packet = self.diary.acks[-1], self.naive.packets[newest]
        assert (sample.number, sample.sent_at) == (newest, packet.sent_at)
        assert sample.departure == packet.train
        assert sample.acked_bytes == outcome.acked_bytes
        assert sample.in_flight == self.recovery.sent.bytes_in_flight
        assert sample.smoothed_rtt == self.naive.rtt.smoothed

    @rule(early=st.booleans())
    def serve_the_timer(self, early: bool) -> None:
        if early or self.naive.deadline is None:
            at = self.now
        else:
            at = self.now = max(self.now, self.naive.deadline)
        due = self.naive.deadline is not None and at >= self.naive.deadline
        losing = self.naive.loss_deadline is not None

        outcome, probing = self.recovery.on_timeout(at)

        assert probing == (due and not losing)
        self.check(outcome, self.naive.lose(at) if due and losing else [])
        self.naive.timeouts += probing
        if probing:
            self.naive.probe_from = at

    @precondition(lambda self: self.naive.packets)
    @rule(beyond=st.integers(0, 2**40), data=st.data())
    def hear_a_lie(self, beyond: int, data: st.DataObject) -> None:
        """Whoever lies is found out, and what was known is still true."""
        skipped = [n for n, p in self.naive.packets.items() if p.fate == Fate.SKIPPED]
        lies = [len(self.naive.packets) + beyond, *(n for n in skipped if n >= self.naive.low)]
        lie = data.draw(st.sampled_from(lies))

        with pytest.raises(ViolationError):
            deepcopy(self.recovery).on_ack(ack((lie, lie)), self.now)

    # What is compared.

    def ack_of(self, named: set[int]) -> Ack:
        runs = list[tuple[int, int]]()
        for number in sorted(named):
            if runs and runs[-1][1] == number - 1:
                runs[-1] = (runs[-1][0], number)
            else:
                runs.append((number, number))
        return ack(*runs[::-1])

    def fragments_of(self, outcome: Outcome) -> list[tuple[int, int]]:
        pairs = [pair for run in outcome.arrived for pair in zip(*run, strict=True)]
        found = [(int(key), int(index)) for key, index in pairs if key >= 0]
        assert len(found) == len(set(found)), "nothing arrives twice"
        return sorted(found, key=str)

    def check(self, outcome: Outcome, lost: list[int]) -> None:
        packets = self.naive.packets
        counting = [n for n in lost if not packets[n].is_size_probe]
        assert outcome.lost_packets == len(counting)
        contents = [packets[n].contents for n in lost if packets[n].contents is not None]
        assert outcome.lost_contents == contents
        if not lost:
            assert outcome.lost is None
            return
        assert outcome.lost is not None
        assert outcome.smallest_lost_bytes == min(packets[n].size for n in lost)
        found = [(int(key), int(index)) for key, index in zip(*outcome.lost, strict=True)]
        assert [f for f in found if f[0] >= 0] == [packets[n].fragment for n in lost if
                                                  packets[n].fragment is not None]  # fmt: skip
        if counting:
            size, sent_at, in_flight = self.diary.losses.pop()
            assert size == sum(packets[n].size for n in counting)
            assert sent_at == packets[lost[-1]].sent_at
            assert in_flight == self.recovery.sent.bytes_in_flight
        assert self.diary.losses == []

    @invariant()
    def what_is_in_flight_is_the_sum_of_its_packets(self) -> None:
        sent, flying = self.recovery.sent, self.naive.flying
        assert sent.bytes_in_flight == sum(packet.size for packet in flying.values())
        assert sent.packets_in_flight == len(flying)
        assert sent.bytes_in_flight >= 0

    @invariant()
    def every_packet_of_interest_is_where_it_belongs(self) -> None:
        sent, packets = self.recovery.sent, self.naive.packets
        assert (sent.oldest, sent.next_number) == (self.naive.low, len(packets))
        for number, fate in enumerate(
            sent.fates(sent.oldest, sent.next_number).tolist(), sent.oldest
        ):
            assert fate == packets[number].fate
            if fate == Fate.IN_FLIGHT:
                assert sent.train_of(number).departure == packets[number].train
        lost = [n for n, packet in packets.items() if packet.fate == Fate.LOST]
        assert sent.lost_packets == len(lost)

    @invariant()
    def timers_and_thresholds_are_the_same(self) -> None:
        assert self.recovery.deadline == self.naive.deadline
        assert (self.recovery.deadline is None) == (not self.naive.flying)
        assert self.recovery.timeouts == self.naive.timeouts
        assert self.diary.collapses == self.naive.collapses


TestBookkeeping = Bookkeeping.TestCase
TestBookkeeping.settings = settings(max_examples=examples(100), stateful_step_count=60)
