"""The messages of a run: each is read as it was written, and each field refuses what it must."""

import math
from dataclasses import fields, replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol import CloseCode, InvalidMessageError
from gradwire_protocol.crypto.keys import KEY_ID_BYTES, NAME_BYTES_MAX
from gradwire_protocol.limits import (
    BUFFER_LAYOUT_BYTES_MAX,
    BUFFERS_BYTES_MAX,
    MESSAGE_BYTES_MAX,
    REASON_BYTES_MAX,
    WINDOW_BYTES,
)
from gradwire_protocol.messages.admission import (
    QUANTUM_EXPONENT_MAX,
    QUANTUM_EXPONENT_MIN,
    Follow,
    Join,
    LogName,
    Peer,
    Place,
    Promise,
    Refuse,
    Resume,
    Roster,
    Voters,
    Welcome,
    name_in_roster,
)
from gradwire_protocol.messages.buffers.layout import Buffers
from gradwire_protocol.messages.fields import (
    ADDRESS_CHARACTERS_MAX,
    BLOCK_ELEMENTS,
    BLOCKS_MAX,
    CLOCK_MAX,
    PACE_MAX,
    REASON_CHARACTERS_MAX,
    SEQUENCE_MAX,
    TERM_MAX,
    WORKER_ID_BYTES,
    WORKER_NAME_CHARACTERS_MAX,
    count_updates,
    covers,
)
from gradwire_protocol.messages.kinds import RANK_END, RANKS_MAX, EndCode, Kind
from gradwire_protocol.messages.layout import (
    DIMENSIONS_MAX,
    ELEMENTS_MAX,
    LAYOUT_BYTES_MAX,
    METADATA,
    NAME_CHARACTERS_MAX,
    TENSORS_MAX,
    Layout,
    Tensor,
)
from gradwire_protocol.messages.link import CONTROL_RECORDS, LOGGED_RECORDS
from gradwire_protocol.messages.logged.histograms import (
    HISTOGRAM,
    HISTOGRAMS_MAX,
    LAYERS_MAX,
    Histograms,
    ratio_series,
)
from gradwire_protocol.messages.logged.scalars import (
    COUNT_MAX,
    POINT,
    POINTS_MAX,
    SERIES_MAX,
    SERIES_NAME_CHARACTERS_MAX,
    STEP_MAX,
    Logged,
)
from gradwire_protocol.messages.modes.kept_state import KeptState
from gradwire_protocol.messages.modes.mode import (
    AVERAGING,
    BITS,
    CENTRAL,
    DILOCO,
    EVERY_MAX,
    ROUND_TIMEOUT_SECONDS_MAX,
    USUAL,
    Mode,
)
from gradwire_protocol.messages.modes.optimizer import OPTIMIZERS, STEPS_MAX, Optimizer
from gradwire_protocol.messages.relays import (
    BRANCH_OVERHEAD_BYTES,
    ELSEWHERE_MAX,
    RECEIPT,
    RECEIPTS_MAX,
    RELAY_ID_BYTES,
    RELAYS_DEEP_MAX,
    Branch,
    Closed,
    Elsewhere,
    Fed,
    Feed,
    Have,
    Opened,
    Receipts,
    Returned,
    Trunk,
    Unfed,
    passes,
)
from gradwire_protocol.messages.replicas import Blocks, Contents, Digest, Snapshot, Want
from gradwire_protocol.messages.schema import Record
from gradwire_protocol.messages.updates import (
    NORM_MAX,
    PART_HITS,
    UPDATE_BYTES_MAX,
    Aside,
    EncodedUpdate,
    Entries,
    Finish,
    Finished,
    Leave,
    Span,
    Stable,
    Stopping,
)
from gradwire_protocol.messages.work import (
    EPOCHS_MAX,
    ITEMS_MAX,
    LEASE_SECONDS_MAX,
    NUMBER_MAX,
    OPEN_MAX,
    WORK_NAME_CHARACTERS_MAX,
    Grant,
    Ledger,
    Plan,
    StopTraining,
    Work,
    WorkState,
)
from support.records import EXAMPLES, LAYOUT, LOG, MODE, PEER, PLACE, PLAN, RESUME, SPAN
from support.wording import naming

POSITION_MAX = 2**63
LOG_ID_MAX = 2**64 - 1

NAMES = st.text(max_size=20).filter(str.isprintable)
RANKS = st.integers(0, RANK_END - 1)
SEQUENCES = st.integers(0, SEQUENCE_MAX)
EXPONENTS = st.integers(QUANTUM_EXPONENT_MIN, QUANTUM_EXPONENT_MAX)
VERSIONS = st.dictionaries(RANKS, SEQUENCES, max_size=5)
BRANCHES = st.integers(1, 2**32 - 1)
POSITIONS = st.integers(0, POSITION_MAX)
LOG_IDS = st.integers(0, LOG_ID_MAX)
LOGS = st.builds(LogName, LOG_IDS, LOG_IDS, POSITIONS)
PLACES = st.builds(Place, LOGS, POSITIONS)
TENSORS = st.builds(
    Tensor, NAMES.filter(METADATA.__ne__), st.lists(st.integers(1, 9), max_size=4).map(tuple)
)
LAYOUTS = st.builds(
    Layout,
    st.lists(TENSORS, min_size=1, max_size=5, unique_by=lambda tensor: tensor.name).map(tuple),
)
PEERS = st.lists(st.builds(Peer, RANKS, NAMES, st.booleans()), max_size=5).map(tuple)

SPANS = st.builds(
    Span,
    POSITIONS,
    VERSIONS,
    st.integers(1, 2**63),
    st.integers(1, ELEMENTS_MAX // PART_HITS),
    st.dictionaries(RANKS, st.integers(0, 2**63), max_size=5),
    st.dictionaries(RANKS, st.integers(0, CLOCK_MAX), max_size=5),
    st.dictionaries(RANKS, st.integers(0, CLOCK_MAX), max_size=5),
    VERSIONS,
)
OPTIMIZERS_OF_MASTERS = st.builds(
    Optimizer,
    st.sampled_from(sorted(OPTIMIZERS)),
    st.floats(0.0, 1e6),
    st.floats(0.0, 0.999),
    st.booleans(),
    st.floats(0.0, 0.999),
    st.floats(0.0, 0.999),
    st.floats(1e-30, 1.0),
    st.floats(0.0, 1e3),
    st.sampled_from(["constant", "cosine", "linear"]),
    st.integers(0, STEPS_MAX),
    st.integers(0, STEPS_MAX),
    st.floats(1.0, 100.0),
)
KEPT_STATES = st.builds(
    KeptState,
    st.from_regex(r"[A-Za-z_]{1,64}", fullmatch=True),
    st.lists(st.sampled_from(["exp_avg", "exp_avg_sq", "sum"]), min_size=1, unique=True).map(tuple),
    st.lists(st.sampled_from(["step", "mu_product"]), unique=True).map(tuple),
)
MODES = st.one_of(
    st.builds(Mode, st.just(DILOCO), every=st.just(64), streams=st.sampled_from([1, 2, 4, 8, 64])),
    st.builds(Mode, st.just(AVERAGING), bits=st.sampled_from([4, 8]), optimizer_state=KEPT_STATES),
    st.builds(
        Mode,
        st.sampled_from(sorted(USUAL.keys() - {CENTRAL})),
        st.integers(1, EVERY_MAX),
        st.sampled_from(BITS),
        st.integers(1, ROUND_TIMEOUT_SECONDS_MAX),
        st.floats(0.0, 10.0),
        st.floats(0.0, 0.999),
    ),
    st.builds(
        Mode,
        st.just(CENTRAL),
        bits=st.sampled_from(BITS),
        optimizer=OPTIMIZERS_OF_MASTERS,
        gradients_per_update=st.integers(1, 100),
        staleness=st.sampled_from(["none", "inverse"]),
    ),
)
TERMS = st.integers(0, TERM_MAX)
WORKER_IDS = st.binary(min_size=WORKER_ID_BYTES, max_size=WORKER_ID_BYTES)
RESUMES = st.builds(
    Resume,
    RANKS,
    SEQUENCES,
    PLACES,
    VERSIONS,
    st.integers(0, RANKS_MAX),
    POSITIONS,
    SEQUENCES,
    TERMS,
    heard_of=st.lists(RANKS, max_size=9).map(tuple),
)
NUMBERS = st.integers(0, NUMBER_MAX)
PLANS = st.builds(
    Plan,
    NAMES,
    st.integers(1, ITEMS_MAX),
    st.integers(1, EPOCHS_MAX),
    st.none() | st.integers(0, 2**32 - 1),
    st.integers(1, LEASE_SECONDS_MAX),
)
LEDGERS = st.builds(Ledger, NUMBERS, st.lists(NUMBERS, max_size=5).map(tuple))
FIELDS: tuple[tuple[Any, ...], ...] = (
    (
        Join,
        st.none() | NAMES,
        WORKER_IDS,
        NAMES,
        st.none() | RANKS,
        st.integers(0, 2**16 - 1),
        EXPONENTS,
        LAYOUTS,
        st.none() | RESUMES,
        st.none() | PLACES,
        st.none() | MODES,
    ),
    (
        Welcome,
        NAMES,
        RANKS,
        SEQUENCES,
        EXPONENTS,
        LAYOUTS,
        PEERS,
        st.booleans(),
        PLACES,
        VERSIONS,
        st.booleans(),
        TERMS,
        st.none() | NAMES,
        st.booleans(),
        st.integers(0, RANKS_MAX),
        MODES,
    ),
    (Contents, VERSIONS),
    (Entries, st.integers(1, 2**63), st.binary(max_size=50), st.none() | SPANS),
    (Digest, POSITIONS, st.integers(0, 2**64 - 1)),
    (Blocks, POSITIONS, VERSIONS, st.binary(min_size=8, max_size=64)),
    (
        Buffers,
        RANKS,
        st.booleans(),
        st.booleans(),
        *[st.binary(max_size=50)] * 4,
    ),
    (Want, st.lists(st.integers(0, BLOCKS_MAX - 1), max_size=5).map(tuple)),
    (
        Work,
        PLANS,
        LEDGERS,
        st.none() | NUMBERS,
        st.dictionaries(NUMBERS, SEQUENCES, max_size=5),
        st.booleans(),
    ),
    (Grant, NAMES, LEDGERS, st.none() | NUMBERS, NAMES),
    (StopTraining, NAMES),
    (Aside, SEQUENCES, st.floats(0, NORM_MAX), st.floats(0, NORM_MAX)),
    (Refuse, NAMES, NAMES, st.none() | NAMES),
    (
        Logged,
        st.integers(1, COUNT_MAX),
        st.lists(NAMES, max_size=5).map(tuple),
        st.binary(max_size=50),
        st.integers(0, COUNT_MAX),
    ),
    (
        Histograms,
        st.integers(1, COUNT_MAX),
        st.integers(0, STEP_MAX),
        st.lists(NAMES, max_size=5).map(tuple),
        st.binary(max_size=50),
        st.integers(0, COUNT_MAX),
    ),
    (Follow, TERMS, st.none() | SEQUENCES),
    (Promise, TERMS),
    (Voters, SEQUENCES, TERMS, st.lists(WORKER_IDS, max_size=5).map(tuple)),
    (Roster, PEERS),
    (Snapshot, st.integers(0, ELEMENTS_MAX), st.binary(min_size=4, max_size=50)),
    (
        EncodedUpdate,
        st.integers(1, SEQUENCE_MAX),
        st.integers(0, 2**63),
        st.binary(max_size=50),
        st.integers(0, CLOCK_MAX),
        st.integers(0, PACE_MAX),
        VERSIONS,
    ),
    (Stable, POSITIONS, VERSIONS),
    (Finish, SEQUENCES),
    (Finished, VERSIONS),
    (Leave, SEQUENCES, NAMES),
    (Stopping, NAMES),
    (Trunk, st.integers(0, WINDOW_BYTES), st.binary(max_size=RELAY_ID_BYTES)),
    (
        Branch,
        BRANCHES,
        SEQUENCES,
        st.integers(0, 2),
        st.integers(0, 2**16 - 1),
        SEQUENCES,
        st.integers(0, 2**16 - 1),
        st.binary(max_size=50),
    ),
    (Receipts, st.binary(max_size=50)),
    (Returned, BRANCHES, st.integers(1, 2**63)),
    (Feed, BRANCHES, PLACES, VERSIONS, st.integers(1, ELEMENTS_MAX), st.booleans()),
    (Fed, BRANCHES, BRANCHES, BRANCHES, POSITIONS, POSITIONS, SEQUENCES, st.none() | RANKS),
    (Unfed, BRANCHES, BRANCHES),
    (Have, BRANCHES, POSITIONS, SEQUENCES, SEQUENCES),
    (Elsewhere, st.lists(NAMES, max_size=ELSEWHERE_MAX).map(tuple)),
)
"""Each message with what its fields can be."""

RECORDS: st.SearchStrategy[Record] = st.one_of(*(st.builds(*row) for row in FIELDS))

LONG_NAME = "x" * (NAME_CHARACTERS_MAX + 1)
LONG_REASON = "x" * (REASON_CHARACTERS_MAX + 1)

LONG_WORKER_NAME = "x" * (WORKER_NAME_CHARACTERS_MAX + 1)

REFUSED: tuple[tuple[type[Record], str, object], ...] = (
    (Tensor, "name", LONG_NAME),
    (Tensor, "shape", (1,) * (DIMENSIONS_MAX + 1)),
    (Tensor, "shape", (-1,)),
    (Tensor, "shape", (ELEMENTS_MAX + 1,)),
    (Layout, "tensors", ()),
    (Layout, "tensors", (Tensor("empty", (0,)),)),
    (Layout, "tensors", (Tensor("large", (2**16, 2**15)),)),
    (Layout, "tensors", (Tensor("a", (ELEMENTS_MAX,)), Tensor("b", (1,)))),
    (Layout, "tensors", (Tensor("a", (1,)),) * (TENSORS_MAX + 1)),
    (Layout, "tensors", (Tensor("a", (1,)), Tensor("b", (1,)), Tensor("a", (2,)))),
    (Layout, "tensors", (Tensor(METADATA, (1,)),)),
    (Peer, "rank", RANK_END),
    (Peer, "name", "line\nbreak"),
    (Peer, "finished", 1),
    (Join, "run", LONG_NAME),
    (Join, "worker_id", bytes(WORKER_ID_BYTES - 1)),
    (Join, "worker_id", bytes(WORKER_ID_BYTES + 1)),
    (Join, "name", None),
    (Join, "rank", -1),
    (Join, "codec", 2**16),
    (Join, "quantum_exponent", QUANTUM_EXPONENT_MAX + 1),
    (Join, "layout", Layout(())),
    (Join, "resume", replace(RESUME, rank=RANK_END)),
    (Join, "partial", replace(PLACE, position=-1)),
    (Join, "mode", replace(MODE, every=0)),
    (Mode, "name", "raw"),
    (Mode, "every", EVERY_MAX + 1),
    (Mode, "bits", 3),
    (Mode, "bits", False),
    (Mode, "round_timeout_seconds", 0),
    (Mode, "outer_lr", float("nan")),
    (Mode, "outer_lr", "0.7"),
    (Mode, "outer_momentum", 1.0),
    (Mode, "optimizer", Optimizer().to_plain()),
    (Mode, "optimizer", {"name": "sgd"}),
    (Mode, "gradients_per_update", 0),
    (Mode, "staleness", "linear"),
    (Mode, "streams", 0),
    (Mode, "streams", 65),
    (Mode, "streams", 3),
    (Mode, "sparse", -0.1),
    (Mode, "sparse", 0.6),
    (Mode, "sparse", 0.1),
    (Mode, "waits", 1),
    (Mode, "optimizer_state", {"optimizer": "Adam"}),
    (Mode, "optimizer_state", {"optimizer": "Adam", "slots": [], "numbers": []}),
    (KeptState, "optimizer", ""),
    (KeptState, "optimizer", "My Adam"),
    (KeptState, "slots", ["exp_avg", "exp_avg"]),
    (KeptState, "slots", ["exp_avg", "step"]),
    (KeptState, "slots", ["exp avg"]),
    (KeptState, "slots", ["a", "b", "c", "d", "e"]),
    (KeptState, "numbers", ["a", "b", "c", "d", "e"]),
    (KeptState, "numbers", "step"),
    (Optimizer, "name", "lion"),
    (Optimizer, "lr", -1.0),
    (Optimizer, "momentum", 1.0),
    (Optimizer, "nesterov", 1),
    (Optimizer, "beta1", 1.0),
    (Optimizer, "beta2", -0.1),
    (Optimizer, "eps", 0.0),
    (Optimizer, "weight_decay", float("inf")),
    (Optimizer, "schedule", "step"),
    (Optimizer, "steps", 2**31),
    (Optimizer, "warm_up", -1),
    (Optimizer, "gradient_max", 0.0),
    (Resume, "rank", -1),
    (Resume, "sequence", SEQUENCE_MAX + 1),
    (Resume, "versions", {RANK_END: 1}),
    (Resume, "workers", RANKS_MAX + 1),
    (Resume, "place", replace(PLACE, position=-1)),
    (Resume, "kept_after", -1),
    (Resume, "kept_from", SEQUENCE_MAX + 1),
    (Contents, "versions", {0: -1}),
    (LogName, "id", -1),
    (LogName, "base", -1),
    (LogName, "parts_at", -1),
    (Place, "log", replace(LOG, parts_at=-1)),
    (Place, "position", POSITION_MAX + 1),
    (Span, "start", -1),
    (Span, "after", {0: -1}),
    (Span, "updates", 0),
    (Span, "parts", 0),
    (Span, "based_on", {RANK_END: 1}),
    (Span, "based_on", {0: -1}),
    (Span, "paces", {0: CLOCK_MAX + 1}),
    (Span, "clocks", {RANK_END: 1}),
    (Span, "clocks", {0: CLOCK_MAX + 1}),
    (Span, "closes", {RANK_END: 1}),
    (Entries, "stop", 0),
    (Entries, "body", bytes(UPDATE_BYTES_MAX + 1)),
    (Entries, "span", replace(SPAN, updates=-1)),
    (Digest, "position", -1),
    (Digest, "digest", -1),
    (Blocks, "position", -1),
    (Blocks, "versions", {RANK_END: 1}),
    (Blocks, "digests", bytes(7)),
    (Blocks, "digests", bytes(8 * BLOCKS_MAX + 1)),
    (Want, "blocks", (BLOCKS_MAX,)),
    (Want, "blocks", (0,) * (BLOCKS_MAX + 1)),
    (Buffers, "rank", RANK_END),
    (Buffers, "final", 1),
    (Buffers, "leaves", None),
    (Buffers, "layout", bytes(BUFFER_LAYOUT_BYTES_MAX + 1)),
    (Buffers, "floats", bytes(BUFFERS_BYTES_MAX + 1)),
    (Buffers, "integers", "text"),
    (Buffers, "others", bytes(BUFFERS_BYTES_MAX + 1)),
    (Resume, "term", TERM_MAX + 1),
    (Resume, "leaving", 1),
    (Resume, "heard_of", (RANK_END,)),
    (Welcome, "term", -1),
    (Welcome, "standby", "line\nbreak"),
    (Refuse, "master", "x" * (ADDRESS_CHARACTERS_MAX + 1)),
    (Follow, "term", -1),
    (Follow, "voters", SEQUENCE_MAX + 1),
    (Promise, "term", TERM_MAX + 1),
    (Voters, "number", -1),
    (Voters, "term", -1),
    (Voters, "workers", (bytes(WORKER_ID_BYTES - 1),)),
    (Voters, "workers", (bytes(WORKER_ID_BYTES),) * (RANKS_MAX + 1)),
    (Welcome, "resumed", 1),
    (Welcome, "compares", 1),
    (Welcome, "buffers", -1),
    (Welcome, "buffers", 2 * RANKS_MAX + 1),
    (Welcome, "run", None),
    (Welcome, "rank", RANK_END),
    (Welcome, "sequence", SEQUENCE_MAX + 1),
    (Welcome, "quantum_exponent", QUANTUM_EXPONENT_MIN - 1),
    (Welcome, "layout", Layout(())),
    (Welcome, "roster", (PEER,) * (RANKS_MAX + 1)),
    (Welcome, "founder", 0),
    (Welcome, "place", replace(PLACE, position=-1)),
    (Welcome, "versions", {RANK_END: 1}),
    (Welcome, "mode", None),
    (Refuse, "code", LONG_NAME),
    (Refuse, "reason", LONG_REASON),
    (Roster, "peers", (replace(PEER, rank=-1),)),
    (Snapshot, "start", -1),
    (Snapshot, "start", ELEMENTS_MAX + 1),
    (Snapshot, "values", b""),
    (Snapshot, "values", bytes(4 * BLOCK_ELEMENTS + 1)),
    (EncodedUpdate, "sequence", 0),
    (EncodedUpdate, "sequence", SEQUENCE_MAX + 1),
    (EncodedUpdate, "based_on", -1),
    (EncodedUpdate, "body", bytes(UPDATE_BYTES_MAX + 1)),
    (EncodedUpdate, "clock", -1),
    (EncodedUpdate, "clock", CLOCK_MAX + 1),
    (EncodedUpdate, "pace", -1),
    (EncodedUpdate, "pace", PACE_MAX + 1),
    (EncodedUpdate, "closes", {RANK_END: 1}),
    (Stable, "position", -1),
    (Stable, "versions", {0: -1}),
    (Finish, "sequence", -1),
    (Finished, "versions", {-1: 1}),
    (Leave, "sequence", -1),
    (Leave, "reason", LONG_REASON),
    (Stopping, "reason", LONG_REASON),
    (Plan, "name", "x" * (WORK_NAME_CHARACTERS_MAX + 1)),
    (Plan, "items", 0),
    (Plan, "items", ITEMS_MAX + 1),
    (Plan, "epochs", EPOCHS_MAX + 1),
    (Plan, "seed", -1),
    (Plan, "lease_seconds", 0),
    (Plan, "lease_seconds", LEASE_SECONDS_MAX + 1),
    (Ledger, "next", NUMBER_MAX + 2),
    (Ledger, "open", (NUMBER_MAX + 1,)),
    (Ledger, "open", (0,) * (OPEN_MAX + 1)),
    (Work, "plan", None),
    (Work, "ledger", None),
    (Grant, "ledger", None),
    (WorkState, "plan", None),
    (WorkState, "ledger", None),
    (Work, "held", NUMBER_MAX + 1),
    (Work, "finished", {-1: 1}),
    (Work, "wants", 1),
    (Grant, "name", "x" * (WORK_NAME_CHARACTERS_MAX + 1)),
    (Grant, "number", -1),
    (Grant, "refused", LONG_REASON),
    (StopTraining, "reason", LONG_REASON),
    (Aside, "sequence", -1),
    (Aside, "norm", math.nan),
    (Aside, "limit", -1.0),
    (Logged, "number", 0),
    (Logged, "names", ("loss",) * (SERIES_MAX + 1)),
    (Logged, "names", ("x" * (SERIES_NAME_CHARACTERS_MAX + 1),)),
    (Logged, "points", bytes(POINT.itemsize * POINTS_MAX + 1)),
    (Logged, "dropped", -1),
    (Histograms, "number", 0),
    (Histograms, "step", STEP_MAX + 1),
    (Histograms, "names", ("weight",) * (LAYERS_MAX + 1)),
    (Histograms, "names", (LONG_NAME,)),
    (Histograms, "histograms", bytes(HISTOGRAM.itemsize * HISTOGRAMS_MAX + 1)),
    (Histograms, "dropped", -1),
    (Trunk, "window_bytes", WINDOW_BYTES + 1),
    (Trunk, "relay_id", bytes(RELAY_ID_BYTES + 1)),
    (Branch, "branch", 0),
    (Branch, "index", -1),
    (Branch, "act", 3),
    (Branch, "stream", 2**16),
    (Branch, "number", 2**32),
    (Branch, "kind", 2**16),
    (Branch, "body", None),
    (Opened, "name", "x" * (NAME_BYTES_MAX + 1)),
    (Opened, "role", 3),
    (Opened, "key_id", bytes(KEY_ID_BYTES + 1)),
    (Closed, "code", 2**16),
    (Closed, "reason", "x" * (REASON_BYTES_MAX + 1)),
    (Closed, "by_peer", 1),
    (Receipts, "packed", bytes(RECEIPT.size * RECEIPTS_MAX + 1)),
    (Returned, "branch", 0),
    (Returned, "charge", 0),
    (Feed, "number", 0),
    (Feed, "place", None),
    (Feed, "versions", {-1: 1}),
    (Feed, "elements", 0),
    (Feed, "has_rounds", 1),
    (Fed, "feed", 0),
    (Fed, "index", 0),
    (Fed, "branch", 0),
    (Fed, "position", -1),
    (Fed, "told", -1),
    (Fed, "number", 2**32),
    (Fed, "rank", RANK_END),
    (Unfed, "feed", 0),
    (Unfed, "branch", 0),
    (Have, "feed", 0),
    (Have, "position", -1),
    (Have, "index", -1),
    (Have, "number", 2**32),
    (Elsewhere, "masters", ("x",) * (ELSEWHERE_MAX + 1)),
)


@pytest.mark.parametrize(
    "work",
    [
        Work(PLAN, Ledger(301), None),
        Work(PLAN, Ledger(5, (5,)), None),
        Work(PLAN, Ledger(5, (3, 1)), None),
        Work(PLAN, Ledger(5, (1, 1)), None),
        Work(PLAN, Ledger(5, (1,)), 2),
        Work(PLAN, Ledger(5, (1,)), None, {2: 1}),
        Work(PLAN, Ledger(5, (1,)), 1, {1: 1}),
        Work(PLAN, Ledger(5, (1,)), 1, wants=True),
    ],
)
def test_a_worker_that_contradicts_itself_about_its_items_is_refused(work: Work) -> None:
    with pytest.raises(InvalidMessageError):
        work.check()


def test_the_longest_ledger_fits_a_message() -> None:
    longest = Ledger(NUMBER_MAX, tuple(range(NUMBER_MAX - OPEN_MAX, NUMBER_MAX)))
    grant = Grant("x" * WORK_NAME_CHARACTERS_MAX, longest, NUMBER_MAX, "x" * 1_000)

    assert Grant.parse(grant.pack()) == grant


def test_the_largest_buffers_fit_a_branch_of_a_relay_of_a_relay() -> None:
    largest = Buffers(
        RANK_END - 1, final=True, leaves=True, layout=b"", floats=b"", integers=b"", others=b""
    )
    size = len(replace(largest, others=bytes(BUFFERS_BYTES_MAX)).pack())
    kind: int = Kind.BUFFERS

    for _ in range(RELAYS_DEEP_MAX):
        assert passes(kind, size)
        wrapped = Branch(2**32 - 1, 2**32 - 1, 2, 2**16 - 1, 2**32 - 1, 2**16 - 1, bytes(size))
        assert len(wrapped.pack()) - size <= BRANCH_OVERHEAD_BYTES
        kind, size = Kind.BRANCH, len(wrapped.pack())

    assert size <= MESSAGE_BYTES_MAX


@pytest.mark.parametrize("packed", [bytes(1), bytes(RECEIPT.size + 1)])
def test_a_part_of_a_receipt_is_refused(packed: bytes) -> None:
    with pytest.raises(InvalidMessageError):
        _ = Receipts(packed).all


def test_every_message_is_tested_here() -> None:
    others: set[Any] = {EncodedUpdate, Snapshot, Entries, Branch}
    messages = {*CONTROL_RECORDS.values(), *LOGGED_RECORDS.values(), *others}

    assert messages == {row[0] for row in FIELDS}, "FIELDS has what each can hold"
    assert messages <= {type(example) for example in EXAMPLES}, "support/records.py has one of each"
    assert {record.KIND for record in messages} == set(Kind)


@given(message=RECORDS)
def test_a_message_is_read_as_it_was_written(message: Record) -> None:
    assert type(message).parse(message.pack()) == message


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: type(example).__name__)
def test_every_field_has_a_check_and_an_example_that_it_refuses(example: Record) -> None:
    names = {field.name for field in fields(example)}  # type: ignore[arg-type]

    assert type(example).parse(example.pack()) == example
    assert example.CHECKS.keys() == names
    refused = {name for kind, name, _ in REFUSED if kind is type(example)}
    assert refused == names, "REFUSED has a value of each field that is not allowed"


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    REFUSED,
    ids=[f"{i}-{kind.__name__}.{field}" for i, (kind, field, _) in enumerate(REFUSED)],
)
def test_a_field_out_of_range_is_refused_by_its_name(
    kind: type[Record], field: str, value: object
) -> None:
    [example] = [example for example in EXAMPLES if type(example) is kind]
    message: Record = replace(example, **{field: value})  # type: ignore[type-var]

    with pytest.raises(InvalidMessageError, match=f"^{kind.__name__}: {field}: "):
        kind.parse(message.pack())


def layout_of(size: int) -> Layout:
    """Return a layout that takes so many bytes as it travels."""
    count = size // len(Tensor("x" * NAME_CHARACTERS_MAX, (1,)).pack()) + 1
    tensors = [Tensor(f"{i:x>{NAME_CHARACTERS_MAX}}", (1,)) for i in range(count)]
    excess = len(Layout(tuple(tensors)).pack()) - size
    tensors[:excess] = [Tensor(each.name, ()) for each in tensors[:excess]]  # one byte less each
    return Layout(tuple(tensors))


def test_a_layout_has_a_largest_size() -> None:
    largest, too_large = layout_of(LAYOUT_BYTES_MAX), layout_of(LAYOUT_BYTES_MAX + 1)

    assert Layout.parse(largest.pack()) == largest
    limit = naming("Layout", "tensors", LAYOUT_BYTES_MAX + 1, LAYOUT_BYTES_MAX)
    with pytest.raises(InvalidMessageError, match=limit):
        Layout.parse(too_large.pack())


WIDEST = "\N{GRINNING FACE}"
REASON = WIDEST * REASON_CHARACTERS_MAX
ALL_VERSIONS = dict.fromkeys(range(RANK_END - RANKS_MAX, RANK_END), SEQUENCE_MAX)
FARTHEST = Place(LogName(LOG_ID_MAX, LOG_ID_MAX, POSITION_MAX), POSITION_MAX)
EVERYONE = (
    Peer(RANK_END - 1, WIDEST * WORKER_NAME_CHARACTERS_MAX, finished=True),
) * RANKS_MAX  # fmt: skip
LARGEST: tuple[Record, ...] = (
    EncodedUpdate(SEQUENCE_MAX, 2**63, bytes(UPDATE_BYTES_MAX), CLOCK_MAX, PACE_MAX, ALL_VERSIONS),
    Welcome(
        WIDEST * NAME_CHARACTERS_MAX,
        RANK_END - 1,
        SEQUENCE_MAX,
        QUANTUM_EXPONENT_MIN,
        layout_of(LAYOUT_BYTES_MAX),
        EVERYONE,
        founder=False,
        place=FARTHEST,
        versions=ALL_VERSIONS,
    ),
    Join(
        WIDEST * NAME_CHARACTERS_MAX,
        bytes(WORKER_ID_BYTES),
        WIDEST * WORKER_NAME_CHARACTERS_MAX,
        RANK_END - 1,
        2**16 - 1,
        QUANTUM_EXPONENT_MIN,
        layout_of(LAYOUT_BYTES_MAX),
        Resume(
            RANK_END - 1,
            SEQUENCE_MAX,
            FARTHEST,
            ALL_VERSIONS,
            RANKS_MAX,
            POSITION_MAX,
            SEQUENCE_MAX,
            TERM_MAX,
            heard_of=tuple(ALL_VERSIONS),
        ),
        FARTHEST,
    ),
    Contents(ALL_VERSIONS),
    Entries(
        2**63,
        bytes(UPDATE_BYTES_MAX),
        Span(
            POSITION_MAX,
            ALL_VERSIONS,
            2**63,
            ELEMENTS_MAX // PART_HITS + 1,
            dict.fromkeys(ALL_VERSIONS, 2**63),
            ALL_VERSIONS,
            ALL_VERSIONS,
            ALL_VERSIONS,
        ),
    ),
    Digest(POSITION_MAX, 2**64 - 1),
    Blocks(POSITION_MAX, ALL_VERSIONS, bytes(8 * BLOCKS_MAX)),
    Want((BLOCKS_MAX - 1,) * BLOCKS_MAX),
    Buffers(
        RANK_END - 1,
        final=True,
        leaves=True,
        layout=bytes(BUFFER_LAYOUT_BYTES_MAX),
        floats=bytes(BUFFERS_BYTES_MAX // 2),
        integers=bytes(BUFFERS_BYTES_MAX // 4),
        others=bytes(BUFFERS_BYTES_MAX // 4 - BUFFER_LAYOUT_BYTES_MAX),
    ),
    Refuse(WIDEST * NAME_CHARACTERS_MAX, REASON, WIDEST * ADDRESS_CHARACTERS_MAX),
    Roster(EVERYONE),
    Snapshot(ELEMENTS_MAX, bytes(4 * BLOCK_ELEMENTS)),
    Stable(POSITION_MAX, ALL_VERSIONS),
    Voters(SEQUENCE_MAX, TERM_MAX, (bytes(WORKER_ID_BYTES),) * RANKS_MAX),
    Finished(ALL_VERSIONS),
    Leave(SEQUENCE_MAX, REASON),
    Stopping(REASON),
    Logged(
        COUNT_MAX,
        (WIDEST * SERIES_NAME_CHARACTERS_MAX,) * SERIES_MAX,
        bytes(POINT.itemsize * POINTS_MAX),
        COUNT_MAX,
    ),
    Histograms(
        COUNT_MAX,
        STEP_MAX,
        (WIDEST * NAME_CHARACTERS_MAX,) * LAYERS_MAX,
        bytes(HISTOGRAM.itemsize * HISTOGRAMS_MAX),
        COUNT_MAX,
    ),
)
"""Each message that may be long, as long as it can be."""


@pytest.mark.parametrize("message", LARGEST, ids=lambda message: type(message).__name__)
def test_the_largest_of_each_message_is_read_and_fits_a_message(message: Record) -> None:
    packed = message.pack()

    assert type(message).parse(packed) == message
    assert len(packed) <= MESSAGE_BYTES_MAX


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: type(example).__name__)
def test_a_message_that_is_too_long_is_not_even_unpacked(example: Record) -> None:
    kind = type(example)
    limit = naming(kind.__name__, kind.BYTES_MAX + 1, kind.BYTES_MAX)

    with pytest.raises(InvalidMessageError, match=limit):
        kind.parse(bytes(kind.BYTES_MAX + 1))
    assert kind.BYTES_MAX <= MESSAGE_BYTES_MAX


@pytest.mark.parametrize("kind", [Snapshot, Buffers])
def test_a_message_without_lists_unpacks_none(kind: type[Record]) -> None:
    with pytest.raises(InvalidMessageError, match=f"^{kind.__name__}: 1 exceeds"):
        kind.parse(b"\x91\x90")


def test_buffers_without_values_say_that_none_of_a_rank_count() -> None:
    none = Buffers.withdrawal(7)
    some = replace(none, floats=bytes(4), integers=bytes(8), others=bytes(1))

    assert (none.rank, none.final, none.nbytes) == (7, False, 0)
    assert some.nbytes == 13


def test_the_codes_of_the_application_are_none_of_the_transport() -> None:
    assert min(EndCode) > max(CloseCode)
    assert min(EndCode) == 64


# Layouts.


@given(one=LAYOUTS, other=LAYOUTS)
def test_two_layouts_differ_where_one_says_how(one: Layout, other: Layout) -> None:
    assert (one.difference(other) is None) == (one == other)
    assert (one.digest == other.digest) == (one == other)


@pytest.mark.parametrize(
    ("tensors", "named"),
    [
        ((LAYOUT.tensors[0], Tensor("scale", (1,)), Tensor("b", (5,))), ("'scale'", "(1,)", "()")),
        (LAYOUT.tensors[:2], (2, 13, 3, 17)),
    ],
)
def test_the_first_difference_is_named(
    tensors: tuple[Tensor, ...], named: tuple[object, ...]
) -> None:
    assert LAYOUT.difference(replace(LAYOUT, tensors=tensors)) == naming(*named)


@given(shapes=st.lists(st.lists(st.integers(0, 4), max_size=3), min_size=1, max_size=5))
def test_the_places_of_a_layout_are_those_of_its_tensors_in_order(shapes: list[list[int]]) -> None:
    layout = Layout(tuple(Tensor(f"{i}", tuple(shape)) for i, shape in enumerate(shapes)))

    places = [layout.locate(element) for element in range(layout.elements)]

    assert places == [
        f"{i}{list(place)}" if shape else f"{i}"
        for i, shape in enumerate(shapes)
        for place in product(*map(range, shape))
    ]


@pytest.mark.parametrize("element", [17, 1_000_000])
def test_an_element_behind_the_last_tensor_is_nowhere_and_named(element: int) -> None:
    with pytest.raises(IndexError, match=naming(f"element {element}", "behind")):
        LAYOUT.locate(element)


# Version vectors.


@given(versions=VERSIONS, rank=RANKS)
def test_a_total_leaves_one_rank_out(versions: dict[int, int], rank: int) -> None:
    assert count_updates(versions, without=rank) == sum(versions.values()) - versions.get(rank, 0)


@given(versions=VERSIONS, others=VERSIONS)
def test_a_version_vector_covers_what_it_contains(
    versions: dict[int, int], others: dict[int, int]
) -> None:
    both = {rank: max(versions.get(rank, 0), others.get(rank, 0)) for rank in versions | others}

    assert covers(both, versions)
    assert covers(both, others)
    assert covers(versions, {})
    assert covers(versions, others) == (both == versions | dict.fromkeys(both.keys() - versions, 0))


@pytest.mark.parametrize(
    ("key_name", "own_name", "shown"),
    [
        (None, "host/1", "host/1"),
        ("gpu1", "gpu1", "gpu1"),
        ("gpu1", "host/1", "gpu1 at host/1"),
        ("gpu1", "gpu2", "gpu1 at gpu2"),
        ("g" * 63, "host/1", "g" * 63 + " "),
    ],
)
def test_the_name_in_a_key_comes_first(key_name: str | None, own_name: str, shown: str) -> None:
    assert name_in_roster(key_name, own_name) == shown


@pytest.mark.parametrize(
    ("logged", "named"),
    [
        (Logged(1, ("loss",), bytes(POINT.itemsize + 1), 0), POINT.itemsize + 1),
        (Logged(1, (), bytes(POINT.itemsize), 0), "series 0 of 0"),
        (Logged(1, ("loss", "loss"), b"", 0), "a name for a second time"),
    ],
)
def test_scalars_that_contradict_themselves_are_refused(logged: Logged, named: object) -> None:
    with pytest.raises(InvalidMessageError, match=naming("Logged", named)):
        _ = logged.array


def histogram(**fields: Any) -> bytes:
    """Return one of a tensor with three values."""
    found = np.zeros(1, HISTOGRAM)
    found["elements"], found["bins"][0, 0] = 3, 3
    for name, value in fields.items():
        found[name] = value
    return found.tobytes()


@pytest.mark.parametrize(
    ("names", "histograms", "named"),
    [
        (("w",), bytes(HISTOGRAM.itemsize + 1), HISTOGRAM.itemsize + 1),
        (("w", "w"), b"", "a name for a second time"),
        (("w",), histogram(layer=1), "tensor 1 of 1"),
        ((), histogram(), "tensor 0 of 0"),
        (("w",), histogram(quantity=2), "quantity 2 of 2"),
        (("w",), histogram() * 2, "two of the same quantity"),
        (("w",), histogram(mean=math.nan), "not finite"),
        (("w",), histogram(highest=math.inf), "not finite"),
        (("w",), histogram(nan=1), "more values"),
        (("w",), histogram(bins=2**32 - 1, infinite=2**32 - 1), "more values"),
        (("w",), histogram(elements=2**32 - 1), "more values"),
    ],
)
def test_histograms_that_contradict_themselves_are_refused(
    names: tuple[str, ...], histograms: bytes, named: object
) -> None:
    with pytest.raises(InvalidMessageError, match=naming("Histograms", named)):
        _ = Histograms(1, 0, names, histograms, 0).array


@given(st.lists(NAMES, min_size=1, unique=True))
def test_the_ratios_of_tensors_are_series_of_their_own(names: list[str]) -> None:
    ratios = {ratio_series(name) for name in [*names, *(name.rjust(200, "x") for name in names)]}

    assert len(ratios) == len({*names, *(name.rjust(200, "x") for name in names)})
    assert all(0 < len(ratio) <= SERIES_NAME_CHARACTERS_MAX for ratio in ratios)
