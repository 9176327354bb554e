"""The sealed suites: every packet is encrypted and authenticated, whole trains at little cost.

A packet's nonce is four zeros and its number; the header is authenticated together with the frames.
Calling the cipher costs half a microsecond, and slicing its four arguments out of buffers as much
again. So they are sliced once per packet size, from a buffer of a `Workspace`. An outgoing train is
copied there from the rows of a message that other receivers get too, an incoming one from the
socket's buffer. It is sealed or opened in place, which both ciphers allow.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from itertools import starmap
from typing import Any, Final, TypeAlias

import numpy as np
from cryptography.exceptions import InvalidTag
from numpy.typing import NDArray

from gradwire_protocol.crypto.epochs import OpeningKeys, SealingKeys, epoch_of
from gradwire_protocol.crypto.suites import CIPHER_NONCE_BYTES, Cipher, Suite
from gradwire_protocol.delivery.packet_rows import PacketRows
from gradwire_protocol.delivery.shaped_message import (
    COUNTING,
    NUMBER_HIGH,
    NUMBER_LOW,
    SESSION,
    SINGLE_DATA,
    ShapedMessage,
)
from gradwire_protocol.limits import (
    DATAGRAM_BYTES_MAX,
    EPOCH_PACKETS_BITS,
    FORGERIES_MAX,
    PACKET_HEADER_BYTES,
    TAG_BYTES,
    TRAIN_PACKETS_MAX,
    WORKSPACE_SIZES_MAX,
)
from gradwire_protocol.wire.packets import (
    MASK,
    SINGLE,
    TRANSPORT,
    TRANSPORT_HEADER,
    WORD_BYTES,
    Words,
)

HEAD: Final = PACKET_HEADER_BYTES
_NO_COUNTER: Final = bytes(CIPHER_NONCE_BYTES - 8)
_NUMBER: Final = slice(8, 16)  # the packet number in a header; the nonce ends with the same bytes
READ_BYTES_MAX: Final = 2**16  # of a socket

CipherArguments: TypeAlias = tuple[memoryview, memoryview, memoryview, memoryview]


class TrainBuffer:
    """A buffer for packets of one size, with the slices that a cipher takes."""

    __slots__ = (
        "_headers_for",
        "_view",
        "capacity",
        "numbers",
        "openings",
        "rows",
        "sealings",
        "size",
        "words",
    )

    def __init__(self, buffer: NDArray[np.uint8], size: int) -> None:
        self.size = size
        self.capacity = count = min(len(buffer) // size, TRAIN_PACKETS_MAX)
        cut = buffer[: count * size]
        self._view = view = cut.data
        self.rows = cut.reshape(count, size)
        self.words: Words = cut.view("<u4").reshape(count, size // WORD_BYTES)
        nonces = np.zeros((count, CIPHER_NONCE_BYTES), np.uint8)
        self.numbers: Words = nonces.view("<u4")[:, 1:]
        """The variable words of the nonces, to be set to the packet numbers."""
        parts: list[CipherArguments] = [
            (nonce.data, view[at + HEAD : at + size - TAG_BYTES], view[at : at + HEAD],
             view[at + HEAD : at + size])
            for nonce, at in zip(nonces, range(0, count * size, size), strict=True)
        ]  # fmt: skip
        self.sealings = parts
        """For each packet: nonce, frames, header, and the place for frames and tag."""
        self.openings = [(nonce, body, header, frames) for nonce, frames, header, body in parts]
        """For each packet: nonce, frames and tag, header, and the place for the frames."""
        self._headers_for: tuple[int, int] | None = None

    def invalidate_headers(self) -> None:
        """Mark the headers as overwritten by another user of the buffer."""
        self._headers_for = None

    def write_headers(self, n: int, session_id: int, number: int) -> None:
        """Write the headers and nonces of the first `n` packets."""
        low, high = number & MASK, number >> 32
        words = self.words
        if self._headers_for != (session_id, high):
            self._headers_for = session_id, high
            words[:, 0] = SINGLE_DATA
            words[:, SESSION] = session_id
            words[:, NUMBER_HIGH] = self.numbers[:, 1] = high
        lows = COUNTING[:n] + np.uint32(low)
        words[:n, NUMBER_LOW] = self.numbers[:n, 0] = lows
        if low + n > MASK:
            self._headers_for = None
            words[MASK - low + 1 : n, NUMBER_HIGH] += np.uint32(1)
            self.numbers[:n, 1] = words[:n, NUMBER_HIGH]

    def datagrams(self, size: int) -> memoryview:
        """Return the first `size` bytes of packets."""
        return self._view[:size]

    def packets(self, count: int) -> PacketRows:
        """Return the first packets for reading."""
        return PacketRows.from_rows(
            self._view[: count * self.size], self.rows[:count], self.words[:count]
        )

    def last_sealing(self, index: int, size: int) -> CipherArguments:
        """Return the arguments of `sealings` for a shorter last packet."""
        nonce, _, header, _ = self.sealings[index]
        at = index * self.size
        view = self._view
        return nonce, view[at + HEAD : at + size - TAG_BYTES], header, view[at + HEAD : at + size]


class Workspace:
    """The buffers in which the connections of an endpoint seal and open trains, one at a time."""

    def __init__(self) -> None:
        self._buffers = tuple(np.zeros(READ_BYTES_MAX, np.uint8) for _ in range(2))
        self._train_buffers: tuple[OrderedDict[int, TrainBuffer], ...] = (
            OrderedDict(),
            OrderedDict(),
        )
        self._outgoing: TrainBuffer | None = None

    def outgoing(self, size: int) -> TrainBuffer:
        """Return the buffer for an outgoing train with packets of this size."""
        last = self._outgoing
        if last is not None and last.size == size:
            return last
        if last is not None:
            last.invalidate_headers()
        self._outgoing = self._train_buffer(0, size)
        return self._outgoing

    def incoming(self, size: int) -> TrainBuffer:
        """Return the buffer for incoming packets of this size."""
        return self._train_buffer(1, size)

    def _train_buffer(self, which: int, size: int) -> TrainBuffer:
        buffers = self._train_buffers[which]
        train = buffers.get(size)
        if train is None:
            # The peer chooses packet sizes, and making a buffer takes longer than opening a train,
            # so buffers are kept and their number is bounded.
            if len(buffers) >= WORKSPACE_SIZES_MAX:
                buffers.popitem(last=False)
            train = buffers[size] = TrainBuffer(self._buffers[which], size)
        else:
            buffers.move_to_end(size)
        return train


class CipherSealing:
    """Sealing of one direction; see `protection.Sealing`."""

    __slots__ = ("_keys", "_next_number", "_workspace")

    def __init__(self, suite: Suite, key: bytes, workspace: Workspace) -> None:
        self._keys = SealingKeys(suite, key)
        self._workspace = workspace
        self._next_number = 0

    def seal(self, packet: bytearray) -> memoryview:
        """Return the datagram for a header and its frames."""
        packet += bytes(-len(packet) % WORD_BYTES)
        header, frames = packet[:PACKET_HEADER_BYTES], packet[PACKET_HEADER_BYTES:]
        number = int.from_bytes(header[_NUMBER], "little")
        sealed = self._cipher(number, 1).encrypt(_NO_COUNTER + header[_NUMBER], frames, header)
        return memoryview(header + sealed)

    def seal_run(
        self, message: ShapedMessage, first: int, stop: int, session_id: int, number: int
    ) -> memoryview:
        """Seal consecutive rows as one block of datagrams."""
        return self._seal(message, slice(first, stop), session_id, number)

    def seal_rows(
        self, message: ShapedMessage, indexes: Sequence[int], session_id: int, number: int
    ) -> list[memoryview]:
        """Seal any rows as one block of datagrams."""
        return [self._seal(message, list(indexes), session_id, number)]

    def _seal(
        self, message: ShapedMessage, which: slice | list[int], session_id: int, number: int
    ) -> memoryview:
        message.write_headers()
        rows = message.rows[which]
        n = len(rows)
        last = (which.stop if isinstance(which, slice) else which[-1] + 1) - 1
        size = message.size_of(last)
        if n == 1:
            header = TRANSPORT_HEADER.pack(TRANSPORT, SINGLE, 0, session_id, number)
            return self.seal(bytearray(header) + rows[0, HEAD : size - TAG_BYTES].data)
        train = self._workspace.outgoing(message.stride)
        train.rows[:n, HEAD:] = rows[:, HEAD:]
        train.write_headers(n, session_id, number)
        sealings = train.sealings[:n]
        if size < message.stride:
            sealings[-1] = train.last_sealing(n - 1, size)
        at = 0
        while at < n:
            # A train may reach into the next epoch, where the key of this one no longer exists.
            stop = min(n, at + _left_in_epoch(number + at))
            _for_each(self._cipher(number + at, stop - at).encrypt_into, sealings[at:stop])
            at = stop
        return train.datagrams((n - 1) * message.stride + size)

    def _cipher(self, number: int, count: int) -> Cipher:
        # Two packets under one key and nonce would reveal both and allow forgeries. An exception,
        # because `python -O` removes assertions.
        if number < self._next_number:
            raise RuntimeError(
                f"packet number {number} would be reused: {self._next_number - 1} was sealed before"
            )
        self._next_number = number + count
        return self._keys.cipher(number)


class CipherOpening:
    """Opening of one direction; see `protection.Opening`."""

    __slots__ = ("_keys", "_workspace")

    def __init__(self, suite: Suite, key: bytes, workspace: Workspace) -> None:
        self._keys = OpeningKeys(suite, key)
        self._workspace = workspace

    @property
    def epoch(self) -> int:
        """Epoch of the newest key used."""
        return self._keys.epoch

    @property
    def too_many_forgeries(self) -> bool:
        """Whether the limit of forgeries is reached."""
        return self._keys.forgeries >= FORGERIES_MAX

    def open(self, datagram: memoryview) -> memoryview | None:
        """Return the frames of a datagram; None if it is not authentic."""
        size = len(datagram)
        if size < PACKET_HEADER_BYTES + TAG_BYTES or size > DATAGRAM_BYTES_MAX or size % WORD_BYTES:
            return None
        header = datagram[:PACKET_HEADER_BYTES]
        nonce = bytes(header[_NUMBER])
        number = int.from_bytes(nonce, "little")
        keys = self._keys
        cipher = keys.cipher(number)
        if cipher is None:
            return None
        try:
            frames = cipher.decrypt(_NO_COUNTER + nonce, datagram[PACKET_HEADER_BYTES:], header)
        except InvalidTag:
            keys.forgeries += 1
            return None
        keys.on_authentic(number)
        return memoryview(frames)

    def open_rows(self, packets: PacketRows) -> PacketRows | None:
        """Open several packets in the workspace; None if any is not authentic."""
        count = packets.count
        train = self._workspace.incoming(packets.size)
        last = packets.number(count - 1)
        cipher = self._keys.cipher(last)
        if (
            count > train.capacity
            or cipher is None
            or epoch_of(packets.number(0)) != epoch_of(last)
        ):
            return None  # the caller opens them one by one
        train.rows[:count] = packets.rows
        train.numbers[:count] = packets.words[:, NUMBER_LOW : NUMBER_HIGH + 1]
        try:
            _for_each(cipher.decrypt_into, train.openings[:count])
        except InvalidTag:
            return None  # opening one by one finds and counts the forged packet
        self._keys.on_authentic(last)
        return train.packets(count)

    def forget_previous_key(self) -> None:
        """Erase the key before the newest one."""
        self._keys.forget_previous_key()


def _for_each(call: Callable[..., Any], arguments: Iterable[CipherArguments]) -> None:
    """Call a function with each tuple of arguments, without a loop in Python."""
    deque(starmap(call, arguments), maxlen=0)


def _left_in_epoch(number: int) -> int:
    """Return how many packets from this one on are in its epoch."""
    return ((epoch_of(number) + 1) << EPOCH_PACKETS_BITS) - number
