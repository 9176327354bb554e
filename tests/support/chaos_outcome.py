"""`Outcome`: what the processes of a `Chaos` have written down, and what has to be true of it."""

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from gradwire_protocol.limits import MIB
from gradwire_protocol.messages.kinds import WORKERS_MAX

WARM_UP_SECONDS: Final = 30.0
WATCHED_SECONDS_MIN: Final = 60.0
MEMORY_GROWTH_MAX: Final = 16 * MIB
DESCRIPTORS_GROWTH_MAX: Final = 4
"""The page that is asked for takes one, and a process that is started several for a moment."""

FAULTS: Final = (
    "gradwire_messages_invalid_total",
    "gradwire_updates_malformed_total",
    'gradwire_leaves_total{reason="fault"}',
    'gradwire_leaves_total{reason="too_slow"}',
)


class Sample(NamedTuple):
    """What a process took at one moment."""

    at: float
    """Seconds since the beginning."""
    who: str
    memory: int
    """Bytes that are resident."""
    descriptors: int
    """Files and sockets that are open."""


@dataclass(slots=True)
class Outcome:
    """What everybody has written down."""

    workers: int
    """How many there have to be in the end."""
    accounts: list[tuple[str, list[dict[str, Any]]]] = field(default_factory=list)
    """Of every worker that has joined, in the order they were started."""
    ended: list[str] = field(default_factory=list)
    """Those that were there in the end."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Of the last master."""
    workers_killed: int = 0
    masters_killed: int = 0
    stood_still: int = 0
    samples: list[Sample] = field(default_factory=list)

    def check(self) -> None:
        """Compare the accounts.

        All who are there in the end have the same bits and the same versions. Of each rank the
        updates are numbered without a gap over all who had it, each of whom began where the last
        accepted update of the one before had ended: so all are in the versions that were sent by
        those who are there, and all that were said to be stable of those who were killed. Who was
        there from its beginning to the end without being given another replica has applied each
        update of others once.
        """
        accounts = dict(self.accounts)
        ends = [accounts[name][-1] for name in self.ended]
        assert len(ends) == self.workers
        assert len({end["digest"] for end in ends}) == 1, [end["digest"] for end in ends]
        # Who has sent nothing yet is in his own versions, and need not be in those of others.
        sent = [{rank: last for rank, last in end["versions"].items() if last} for end in ends]
        assert all(versions == sent[0] for versions in sent), sent
        final: dict[str, int] = {
            rank: last for end in ends for rank, last in end["versions"].items()
        }

        for name, lines in self.accounts:
            began, last = lines[0], lines[-1]
            rank = str(began["rank"])
            first = began["versions"][rank]
            stable = max((line["stable"] for line in lines[1:]), default=0)
            assert first + stable <= final[rank], f"{name}: what was stable is lost"
            if name in self.ended:
                assert first + last["sent"] == final[rank], f"{name}: what it sent is lost"
                relayed = [_relayed(each) for each in (final, began["versions"])]
                given = _total(relayed[0], rank) - _total(relayed[1], rank)
                # Who is given another replica may have had more: a restarted master takes that of
                # the first one to come, where it waits for nobody.
                applied = f"{name} has applied {last['applied']} of {given} updates"
                assert last["applied"] == given or last["rebases"], applied
        self._check_ranks(final)
        for fault in FAULTS:
            assert not self.metrics.get(fault), f"{fault} is {self.metrics[fault]:g}"
        assert self.metrics["gradwire_runs_finished_total"] == 1

    def check_growth(self) -> list[str]:
        """Check that no process takes more as it goes on; return what was seen of each.

        What a process took at most in the last third of its time is compared with the first third,
        without the seconds in which it begins.
        """
        seen = []
        for who in dict.fromkeys(sample.who for sample in self.samples):
            samples = [s for s in self.samples if s.who == who]
            samples = [s for s in samples if s.at >= samples[0].at + WARM_UP_SECONDS]
            if not samples or samples[-1].at - samples[0].at < WATCHED_SECONDS_MIN:
                continue
            third = (samples[-1].at - samples[0].at) / 3
            first = [s for s in samples if s.at <= samples[0].at + third]
            last = [s for s in samples if s.at >= samples[-1].at - third]
            memory = max(s.memory for s in last) - max(s.memory for s in first)
            files = max(s.descriptors for s in last) - max(s.descriptors for s in first)
            seen.append(
                f"{who}, {samples[-1].at - samples[0].at:.0f} s: at most "
                f"{max(s.memory for s in samples) / MIB:.0f} MiB and "
                f"{max(s.descriptors for s in samples)} open, from the first third to the last "
                f"{memory / MIB:+.1f} MiB and {files:+d} open"
            )
            assert memory <= MEMORY_GROWTH_MAX, seen[-1]
            assert files <= DESCRIPTORS_GROWTH_MAX, seen[-1]
        return seen

    def _check_ranks(self, final: dict[str, int]) -> None:
        """Check that nobody began before the end of what was stable of who had its rank before."""
        reached: dict[str, int] = {}
        for name, lines in self.accounts:
            rank = str(lines[0]["rank"])
            first = lines[0]["versions"][rank]
            assert first >= reached.get(rank, 0), f"{name} began in the midst of another one"
            reached[rank] = first + max((line["stable"] for line in lines[1:]), default=0)
        assert reached.keys() <= final.keys()


def _relayed(versions: dict[str, int]) -> dict[str, int]:
    """Return which updates were relayed; with rounds, those of masters."""
    of_masters = {rank: last for rank, last in versions.items() if int(rank) >= WORKERS_MAX}
    return of_masters or versions


def _total(versions: dict[str, int], rank: str) -> int:
    """Return how many updates of others these contain."""
    return sum(sequence for each, sequence in versions.items() if each != rank)
