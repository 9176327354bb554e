"""Application messages: a byte is its kind, the rest is read as one.

Whatever is accepted packs to the same record again, in no more bytes than it came in.
"""

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

import numpy as np

from gradwire_protocol.errors import InvalidMessageError
from gradwire_protocol.messages.admission import CODEC_VERSION, Join, Peer, Roster, Welcome
from gradwire_protocol.messages.fields import BLOCK_ELEMENTS, WORKER_ID_BYTES
from gradwire_protocol.messages.kinds import Kind
from gradwire_protocol.messages.layout import Layout, Tensor
from gradwire_protocol.messages.link import CONTROL_RECORDS, LOGGED_RECORDS
from gradwire_protocol.messages.logged.histograms import NUMBERS, QUANTITIES, Histograms
from gradwire_protocol.messages.logged.scalars import Logged
from gradwire_protocol.messages.relays import Branch, Closed, Opened, Receipts
from gradwire_protocol.messages.replicas import Snapshot
from gradwire_protocol.messages.schema import Record
from gradwire_protocol.messages.snapshots import SnapshotAssembly
from gradwire_protocol.messages.updates import (
    EncodedUpdate,
    Entries,
    Span,
    Stable,
)
from support.records import EXAMPLES

BYTES_MAX: Final = 2_048

RECORDS: Final[dict[Kind, type[Record]]] = {
    record.KIND: record
    for record in (
        *CONTROL_RECORDS.values(),
        *LOGGED_RECORDS.values(),
        Snapshot,
        EncodedUpdate,
        Entries,
        Branch,
    )
}
"""By kind, so that what is in the corpus stays what it is when there are more of them."""

REPLICA_ELEMENTS: Final = 64


def check(data: bytes) -> None:
    """Read a record."""
    if not data or data[0] not in RECORDS:
        return
    kind, payload = RECORDS[Kind(data[0])], data[1:]
    try:
        parsed = kind.parse(payload)
    except InvalidMessageError:
        return
    packed = parsed.pack()
    assert len(packed) <= len(payload), f"{len(packed)} bytes from {len(payload)}"
    assert kind.parse(packed) == parsed, "another record"
    if isinstance(parsed, Branch):
        for inside in (Opened, Closed):
            with suppress(InvalidMessageError):
                found = inside.parse(parsed.body)
                assert inside.parse(found.pack()) == found, "another record"
    if isinstance(parsed, Receipts):
        with suppress(InvalidMessageError):
            _ = parsed.all
    if isinstance(parsed, Join | Welcome):
        check_layout(parsed.layout)
    elif isinstance(parsed, Snapshot):
        check_block(parsed)
    elif isinstance(parsed, Logged | Histograms):
        check_arrays(parsed)


def check_layout(layout: Layout) -> None:
    """Use a layout as master and worker do."""
    first, last = layout.locate(0), layout.locate(layout.elements - 1)
    assert first
    assert last
    assert layout.difference(layout) is None
    assert len(layout.digest) == 8


def check_block(block: Snapshot) -> None:
    """Put a block where it belongs, or not."""
    assembly = SnapshotAssembly(REPLICA_ELEMENTS)
    try:
        complete = assembly.accept_block(block)
    except InvalidMessageError:
        assert not assembly.elements_received
        return
    assert complete
    assert bytes(assembly.values) == block.values


def check_arrays(logged: Logged | Histograms) -> None:
    """Read what was logged as the master does: it is refused, or finite where it has to be."""
    try:
        found = logged.array
    except InvalidMessageError:
        return
    if isinstance(logged, Histograms):
        shares = found["bins"].sum(axis=1, dtype=float)
        assert all(np.isfinite(found[name]).all() for name in NUMBERS)
        assert (shares <= found["elements"]).all()
        assert len(found) <= len(logged.names) * len(QUANTITIES)


def seeds() -> Iterable[bytes]:
    """Return one of each kind, and others of those that can look otherwise."""
    layout = Layout((Tensor("weights", (3, 4)), Tensor("bias", (4,)), Tensor("scale", ())))
    roster = (Peer(0, "one", finished=False), Peer(7, "another", finished=True))
    versions = {0: 5, 7: 2**32 - 1}
    others = (
        Join(None, bytes(WORKER_ID_BYTES), "host", None, CODEC_VERSION, -24, layout),
        Roster(roster),
        Snapshot(0, bytes(4 * REPLICA_ELEMENTS)),
        Snapshot(BLOCK_ELEMENTS, bytes(4)),
        EncodedUpdate(1, 2**40, b"body of an update"),
        Entries(3, b"body of a part", None),
        Entries(2**40, b"", Span(2**39, versions, 7, 2, versions)),
        Stable(2**40, versions),
    )
    for record in (*EXAMPLES, *others):
        if type(record) in RECORDS.values():
            yield bytes([record.KIND]) + record.pack()
