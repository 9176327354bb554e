"""The ledger of a work: each item is done once, however workers come, go and forget."""

from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol.messages.work import FINISHED_MAX, OPEN_MAX, Ledger, Plan
from gradwire_server.state.work import HELD_SHOWN_MAX, WorkLedger

WORKERS = 4
LEASE_SECONDS = 100
PLAN = Plan("train", 10, 2, None, LEASE_SECONDS)


class Accounts:
    """A ledger, the workers it grants items to, and what has become of each item."""

    def __init__(self, plan: Plan = PLAN) -> None:
        self.ledger = WorkLedger(plan)
        self.now = 0.0
        self.held: dict[int, int] = {}
        """By rank."""
        self.sequences = dict.fromkeys(range(WORKERS), 0)
        self.stable = dict.fromkeys(range(WORKERS), 0)
        self.lasting: set[int] = set()
        """Items whose updates all live workers have."""
        self.finished: list[tuple[int, int, int]] = []

    def ask(self, rank: int) -> None:
        """Let a worker finish what it holds, and take another item."""
        if rank in self.held:
            finished = self.held.pop(rank)
            self.sequences[rank] += 1
            self.ledger.finish(rank, finished, self.sequences[rank])
            self.finished.append((finished, rank, self.sequences[rank]))
        number = self.ledger.take(rank, self.now)
        if number is not None:
            assert number not in self.held.values()
            assert number not in self.lasting
            self.held[rank] = number

    def settle(self) -> None:
        """Let all that was sent reach all workers."""
        self.stable = dict(self.sequences)
        self.lasting |= {n for n, rank, sequence in self.finished if sequence <= self.stable[rank]}
        self.ledger.settle(self.stable)

    def lose(self, rank: int) -> None:
        """Lose a worker, and what it has sent that is not stable."""
        self.held.pop(rank, None)
        self.sequences[rank] = self.stable[rank]
        lasting = [each for each in self.finished if each[1] != rank or each[0] in self.lasting]
        self.finished = lasting
        self.ledger.lose(rank, self.stable[rank])

    def restart(self, views: list[Ledger]) -> None:
        """Put a ledger in its place that knows what workers know."""
        self.ledger = WorkLedger(self.ledger.plan)
        for view in views:
            self.ledger.merge(view, self.now)
        for rank, number in self.held.items():
            self.ledger.hold(rank, number, self.now)
        for number, rank, sequence in self.finished:
            self.ledger.finish(rank, number, sequence)

    def check(self) -> None:
        """Check that only what lasts counts as done."""
        ledger = self.ledger.ledger()
        ledger.check(self.ledger.plan)
        assert set(range(ledger.next)) - set(ledger.open) <= self.lasting


@given(data=st.data())
def test_every_item_is_done_and_none_counts_before_its_updates_are_everywhere(
    data: st.DataObject,
) -> None:
    accounts = Accounts()
    ranks = st.integers(0, WORKERS - 1)
    for what in data.draw(st.lists(st.sampled_from(["ask", "settle", "lose", "restart"]))):
        match what:
            case "ask":
                accounts.ask(data.draw(ranks))
            case "lose":
                accounts.lose(data.draw(ranks))
            case "settle":
                accounts.settle()
            case "restart":
                accounts.restart([accounts.ledger.ledger()])
        accounts.check()

    for _ in range(2 * PLAN.numbers):
        for rank in range(WORKERS):
            accounts.ask(rank)
        accounts.settle()

    assert accounts.ledger.is_over
    assert accounts.lasting == set(range(PLAN.numbers))
    assert accounts.ledger.counts() == {"done": 20, "finished": 0, "held": 0, "left": 0}


@given(data=st.data())
def test_what_any_worker_knows_to_be_done_is_done_after_a_restart(data: st.DataObject) -> None:
    accounts = Accounts()
    views = [Ledger()]
    for what in data.draw(st.lists(st.sampled_from(["ask", "settle", "view"]), max_size=40)):
        if what == "ask":
            accounts.ask(data.draw(st.integers(0, WORKERS - 1)))
        elif what == "settle":
            accounts.settle()
        else:
            views.append(accounts.ledger.ledger())
    known = max(views, key=lambda view: view.done)

    accounts.restart(data.draw(st.permutations(views)))

    accounts.check()
    assert accounts.ledger.ledger().done >= known.done


def test_an_item_that_is_held_for_too_long_is_granted_to_another_worker_as_well() -> None:
    ledger = WorkLedger(Plan("train", 1, 1, None, LEASE_SECONDS))
    assert ledger.take(0, 0.0) == 0
    assert ledger.next_due(0.0) == LEASE_SECONDS
    assert ledger.take(1, LEASE_SECONDS - 1) is None

    assert ledger.take(1, LEASE_SECONDS) == 0

    ledger.finish(0, 0, 7)  # the first that has finished it counts
    ledger.finish(1, 0, 9)
    ledger.settle({0: 7, 1: 0})
    assert ledger.is_over


def test_what_was_given_back_goes_out_before_what_was_never_granted() -> None:
    ledger = WorkLedger(PLAN)
    assert [ledger.take(rank, 0.0) for rank in (0, 1, 2)] == [0, 1, 2]

    ledger.give_back(1)
    ledger.lose(0, 0)

    assert [ledger.take(3, 0.0) for _ in range(3)] == [0, 1, 3]
    assert ledger.returned == 2


def test_who_outruns_the_others_waits_and_so_does_who_would_open_too_many() -> None:
    ledger = WorkLedger(Plan("train", 2 * OPEN_MAX, 1, None, LEASE_SECONDS))
    for sequence in range(FINISHED_MAX):
        number = ledger.take(0, 0.0)
        assert number is not None
        ledger.finish(0, number, sequence + 1)

    assert ledger.take(0, 0.0) is None
    others = [ledger.take(1 + i, 0.0) for i in range(OPEN_MAX - FINISHED_MAX + 1)]

    assert others[-1] is None
    assert None not in others[:-1]
    ledger.settle({0: FINISHED_MAX})
    assert ledger.take(0, 0.0) == OPEN_MAX


def test_a_status_names_what_is_held_for_longest() -> None:
    ledger = WorkLedger(Plan("train", 100, 1, None, LEASE_SECONDS))
    for rank in range(2 * HELD_SHOWN_MAX):
        ledger.take(rank, float(rank))

    said = ledger.status(40.0)

    assert said["held"] == 2 * HELD_SHOWN_MAX
    assert len(said["longest_held"]) == HELD_SHOWN_MAX
    assert said["longest_held"][0] == {"number": 0, "rank": 0, "seconds": 40.0}


def test_a_checkpoint_counts_what_its_replica_has() -> None:
    ledger = WorkLedger(PLAN)
    for rank in (0, 1):
        ledger.take(rank, 0.0)
        ledger.finish(rank, rank, 5)

    assert ledger.ledger({0: 5, 1: 4}) == Ledger(2, (1,))
    assert ledger.ledger() == Ledger(2, (0, 1))
