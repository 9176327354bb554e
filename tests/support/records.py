"""Examples of what master and workers say: one of every message, and of what is in one."""

from gradwire_protocol.messages.admission import (
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
)
from gradwire_protocol.messages.buffers.layout import Buffers
from gradwire_protocol.messages.fields import WORKER_ID_BYTES
from gradwire_protocol.messages.layout import Layout, Tensor
from gradwire_protocol.messages.logged.histograms import HISTOGRAM, Histograms
from gradwire_protocol.messages.logged.scalars import POINT, Logged
from gradwire_protocol.messages.modes.kept_state import KeptState
from gradwire_protocol.messages.modes.mode import AVERAGING, Mode
from gradwire_protocol.messages.modes.optimizer import Optimizer
from gradwire_protocol.messages.relays import (
    MESSAGE,
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
)
from gradwire_protocol.messages.replicas import Blocks, Contents, Digest, Snapshot, Want
from gradwire_protocol.messages.schema import Record
from gradwire_protocol.messages.updates import (
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
from gradwire_protocol.messages.work import Grant, Ledger, Plan, StopTraining, Work, WorkState

LAYOUT = Layout((Tensor("weight", (3, 4)), Tensor("scale", ()), Tensor("bias", (4,))))
PEER = Peer(1, "host:123", finished=False)
LOG = LogName(3 << 32 | 7, 2 << 32, 11)
PLACE = Place(LOG, 12)
RESUME = Resume(1, 7, PLACE, {0: 5}, 3, 12, 8)
PLAN = Plan("train", 100, 3, 7, 3_600)
LEDGER = Ledger(12, (3, 10, 11))
SPAN = Span(5, {1: 7}, 2, 1, {1: 4})
KEPT = KeptState("AdamW", ("exp_avg", "exp_avg_sq"), ("step",))
MODE = Mode(AVERAGING, every=16, bits=8, optimizer_state=KEPT)
EXAMPLES: tuple[Record, ...] = (
    Tensor("weight", (3, 4)),
    LAYOUT,
    PEER,
    LOG,
    PLACE,
    RESUME,
    Join("run", bytes(WORKER_ID_BYTES), "host:123", 1, 1, -24, LAYOUT, RESUME, mode=MODE),
    MODE,
    KEPT,
    Optimizer("adam", lr=0.01),
    Welcome("run", 1, 5, -24, LAYOUT, (PEER,), founder=True, place=PLACE, versions={1: 5}),
    Refuse("run_full", "16 workers take part, which is the limit"),
    Roster((PEER,)),
    Snapshot(0, bytes(4)),
    EncodedUpdate(1, 0, b"body", clock=7, pace=12_500),
    Contents({1: 5}),
    SPAN,
    Entries(7, b"body", SPAN),
    Digest(12, 2**64 - 1),
    Blocks(12, {1: 5}, bytes(8)),
    Want((0, 7)),
    Buffers(
        1, final=True, leaves=False, layout=b"l", floats=bytes(4), integers=bytes(8), others=b"o"
    ),
    Stable(12, {1: 5}),
    Finish(5),
    Finished({1: 5}),
    Leave(5, "finished"),
    Stopping("the master was stopped by SIGTERM"),
    Follow(2, None),
    Promise(3),
    Voters(1, 1, (bytes(WORKER_ID_BYTES),)),
    PLAN,
    LEDGER,
    Work(PLAN, LEDGER, 10, {3: 71}),
    Grant("train", LEDGER, 11),
    StopTraining("the loss is nan"),
    Aside(7, 1e6, 1e4),
    WorkState(PLAN, LEDGER),
    Logged(1, ("loss",), bytes(POINT.itemsize), 0),
    Histograms(1, 5, ("weight",), bytes(HISTOGRAM.itemsize), 0),
    Trunk(2**24, bytes(16)),
    Branch(3, 7, MESSAGE, 1, 5, 6, b"body"),
    Opened("node-3", 1, bytes(16)),
    Closed(64, "left", by_peer=True),
    Receipts.of([(3, 1, 5), (4, 1, 6)]),
    Returned(3, 5_000),
    Feed(1, PLACE, {1: 5}, 17),
    Fed(1, 2, 3, 12, 11, 5, 1),
    Unfed(1, 3),
    Have(1, 12, 2, 2**20),
    Elsewhere(("10.0.0.1:40123",)),
)
