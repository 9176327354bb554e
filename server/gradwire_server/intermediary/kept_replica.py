"""`KeptReplica`: the replica that a relay keeps, for workers that join later.

The root does not send it to them then. The relay asks for no replica: the first snapshot that is
carried to a peer passes through it, and it keeps the blocks. To these it adds all results from then
on. When it has told the parent so, that carries blocks without values, and the relay fills them in.
They have to be those of one moment, the one from which on the peer is fed: results are sums of
integers, so those since can be subtracted, from the blocks and from their digests.

It is kept as long as the relay is fed. A relay without peers is not, so the next peer's snapshot
comes from the root.
"""

import logging
from collections.abc import Iterator, Mapping
from weakref import WeakSet

import numpy as np

from gradwire_codecs import BlockDigests, Replica, Update, decode, unpack_block
from gradwire_codecs.arrays import Int32Array, UInt64Array
from gradwire_protocol import InvalidMessageError, Priority
from gradwire_protocol.messages.admission import Welcome
from gradwire_protocol.messages.fields import BLOCK_ELEMENTS, covers
from gradwire_protocol.messages.kinds import SNAPSHOT_STREAM, Kind
from gradwire_protocol.messages.masters.relaying import Carried
from gradwire_protocol.messages.replicas import Snapshot
from gradwire_protocol.messages.snapshots import SnapshotAssembly, expand_block
from gradwire_protocol.messages.updates import EncodedUpdate
from gradwire_server.branches.branch import relayed
from gradwire_server.intermediary.peers import Peer
from gradwire_server.state.replica_copy import ReplicaCopy
from gradwire_server.state.run import Run

logger = logging.getLogger("gradwire.relay")


class KeptReplica:
    """Takes the first snapshot that passes by, and fills in the blocks of later ones."""

    def __init__(self) -> None:
        self.blocks_filled = 0
        """How many blocks were filled in."""
        self._source: Peer | None = None
        """The peer whose snapshot is kept, or is being kept."""
        self._assembly: SnapshotAssembly | None = None
        """Its blocks, while some are missing."""
        self._apart: Replica | None = None
        """The results that are not in these blocks."""
        self._values: Int32Array | None = None
        """The replica, shape (N,), once it is complete."""
        self._digests: BlockDigests | None = None
        """Those that its blocks must have."""
        self._versions: dict[int, int] | None = None
        """By rank, the last result in the blocks and in `_apart`; None before the peer is fed."""
        self._copies: WeakSet[ReplicaCopy] = WeakSet()

    @property
    def is_complete(self) -> bool:
        """Whether blocks can be filled in."""
        return self._values is not None

    # What passes by.

    def take(self, run: Run | None, peer: Peer, carried: Carried, *, feeds: bool) -> bool:
        """Look at a message that is carried to a peer; return whether it is to be filled in.

        `run` is that of the relay, if it has begun, and `feeds` whether any peer is fed.
        Raises `InvalidMessageError` if the parent must not send it.
        """
        if carried.kind == Kind.WELCOME:
            welcome = Welcome.parse(carried.payload)
            is_whole = not (welcome.founder or welcome.resumed or welcome.compares)
            peer.elements = welcome.layout.elements if is_whole else 0
        elif carried.kind == Kind.SNAPSHOT:
            block = Snapshot.parse(carried.payload)
            if not block.values:
                nested = relayed(peer.link.connection)
                has_begun = peer.due or peer.filled
                if nested is not None and nested.branch.keeps_replica and not has_begun:
                    return False  # that relay fills it in
                peer.due[carried.number] = block.start // BLOCK_ELEMENTS
                return True
            # If a block has overtaken WELCOME, another snapshot will do.
            if not peer.blocks and peer.elements and (self._source is None or not feeds):
                self._begin(run, peer)
            peer.blocks += 1
            if peer is self._source and self._assembly is not None:
                self._keep(self._assembly, block)
        return False

    def _begin(self, run: Run | None, peer: Peer) -> None:
        """Keep the snapshot of this peer: what there was is out of date if nobody is fed."""
        self.clear()
        self._source = peer
        self._assembly = SnapshotAssembly(peer.elements)
        self._apart = Replica(np.zeros(peer.elements, np.int32))
        if run is not None:
            self.note_fed(run, peer)

    def _keep(self, assembly: SnapshotAssembly, block: Snapshot) -> None:
        if assembly.accept_block(expand_block(block, assembly.elements, unpack_block)):
            self._complete()

    def _complete(self) -> None:
        """Put blocks and results together, once the first of them are known."""
        assembly, apart = self._assembly, self._apart
        if assembly is None or apart is None or self._versions is None:
            return
        if assembly.is_complete:
            self._values = np.frombuffer(assembly.values, np.dtype("<i4"))
            self._values += apart.values
            self._digests = BlockDigests.of(self._values, BLOCK_ELEMENTS)
            self._assembly = self._apart = None
            logger.info(
                "this relay has a replica of %d parameters now, and gives it to workers that join",
                len(self._values),
            )

    # Results.

    def restart(self) -> None:
        """Forget what results have been added to: they come from the beginning again."""
        if self._versions is not None:
            self.clear()

    def note_fed(self, run: Run, peer: Peer) -> None:
        """Note from where on a peer is fed, which is where its snapshot ends."""
        if peer is not self._source or self._versions is not None or peer.floor is None:
            return
        if self._assembly is None or self._assembly.elements != run.layout.elements:
            raise InvalidMessageError(
                f"Feed of {run.layout.elements} elements, after a Welcome with another number"
            )
        self._versions = dict(peer.floor)
        for rank, sequence, update in _since(run, peer.floor):
            self.add(rank, sequence, update)
        self._complete()

    def add(self, rank: int, sequence: int, update: Update) -> None:
        """Add the next result."""
        if self._versions is None or sequence <= self._versions.get(rank, 0):
            return
        self._versions[rank] = sequence
        if self._values is not None and self._digests is not None:
            Replica(self._values).apply(update)
            self._digests.add(update)
            for copy in self._copies:
                copy.on_update(update)
        elif self._apart is not None:
            self._apart.apply(update)

    # Peers.

    def fill(self, run: Run, peer: Peer) -> bool:
        """Send a peer the blocks that are due; return False if they are not here and never will be.

        Some wait until FEED has said of which moment they are, or for its results.
        """
        if not peer.due or peer.floor is None:
            return True
        if peer.copy is None:
            if self._values is None or self._digests is None or self._versions is None:
                return False
            if not covers(self._versions, peer.floor):
                return True
            peer.copy = self._copy(run, self._values, self._digests.values, peer.floor)
        copy = peer.copy
        if max(peer.due.values()) >= len(copy):
            return False
        for number, block in peer.due.items():
            values = copy.block(block)
            peer.carried.add((SNAPSHOT_STREAM, number))
            peer.link.connection.send(
                SNAPSHOT_STREAM,
                number,
                Kind.SNAPSHOT,
                Snapshot(block * BLOCK_ELEMENTS, values).pack(),
                Priority.SNAPSHOT,
            )
        peer.filled += len(peer.due)
        self.blocks_filled += len(peer.due)
        peer.due.clear()
        if peer.filled == len(copy):
            peer.copy = None
        return True

    def forget(self, peer: Peer) -> None:
        """Forget a peer whose connection is over: if its snapshot is half here, another one's."""
        if peer is self._source and self._values is None:
            self.clear()

    def clear(self) -> None:
        """Forget all that is kept."""
        self._source = self._assembly = self._apart = None
        self._values = self._digests = self._versions = None
        self._copies.clear()

    def _copy(
        self, run: Run, values: Int32Array, digests: UInt64Array, versions: Mapping[int, int]
    ) -> ReplicaCopy:
        for copy in self._copies:
            if copy.versions == versions:
                return copy
        since = [update for _, _, update in _since(run, versions)]
        later = BlockDigests(np.zeros_like(digests), len(values), BLOCK_ELEMENTS)
        for update in since:
            later.add(update)
        copy = ReplicaCopy(values, dict(versions), digests - later.values, run.layout, since)
        self._copies.add(copy)
        return copy


def _since(run: Run, versions: Mapping[int, int]) -> Iterator[tuple[int, int, Update]]:
    """Yield the results that a version vector lacks."""
    for rank, sequence, message in run.relay.log.since(versions, without=-1):
        encoded = EncodedUpdate.parse(message.payload)
        yield rank, sequence, decode(encoded.body, run.layout.elements)
