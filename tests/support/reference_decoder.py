"""A second decoder of encoded updates: slow, plain Python, written from the description alone.

It shares no code with `gradwire_codecs`, so that a mistake in the one is seen by the other.
"""

from collections.abc import Iterator

BLOCK = 64


def reference_decode(body: bytes) -> dict[int, int]:
    """Return the change in quanta of every element that an encoded update changes."""
    if not body:
        return {}
    coder, rest = body[0], iter(body[1:])
    start, length, multiple, hits = (_number(rest) for _ in range(4))
    listed = _number(rest) if coder == 2 else 0
    largest = _number(rest) if coder == 4 else 0
    positions_bytes = _number(rest) if coder in (2, 3) else 0
    coded = bytes(rest)
    if coder == 1:
        positions_bytes = len(coded)
    if coder == 5:
        counts = _bytes(coded, start, length)
    elif coder == 4:
        counts = _dense(coded, start, length, largest)
    else:
        counts = _positions(coded[:positions_bytes], start, hits)
        if coder == 2:
            _list(coded[positions_bytes:], listed, counts)
        if coder == 3:
            _magnitudes(coded[positions_bytes:], counts)
    assert len(counts) == hits
    return {position: count * multiple for position, count in counts.items()}


def _number(data: Iterator[int]) -> int:
    number = shift = 0
    while True:
        byte = next(data)
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return number


class _Bits:
    """A stream of bits."""

    def __init__(self, coded: bytes) -> None:
        self._bits = iter([byte >> j & 1 for byte in coded for j in range(8)])

    def take(self, n: int) -> int:
        """Return a number of `n` bits."""
        return sum(next(self._bits) << j for j in range(n))

    def zeros(self) -> int:
        """Return how many zeros there are before a one, which is taken, too."""
        zeros = 0
        while next(self._bits) == 0:
            zeros += 1
        return zeros

    def rice(self, k: int) -> int:
        """Return what a Rice code stands for."""
        return (self.zeros() << k) + self.take(k)

    def end(self) -> None:
        """Check that less than a byte of zeros is left."""
        left = list(self._bits)
        assert len(left) < 8
        assert not any(left)


class _Parameter:
    """The parameter of a sequence of values."""

    def __init__(self, bits: _Bits) -> None:
        self._bits = bits
        self._values = 0
        self._k = 0

    def next(self) -> int:
        """Return that of the next value; at the head of a block it is read."""
        if self._values == 0:
            self._k = self._bits.take(5)
        elif self._values % BLOCK == 0:
            zeros = self._bits.zeros()
            self._k += (zeros + 1) // 2 if zeros % 2 else -zeros // 2
        self._values += 1
        return self._k


def _positions(coded: bytes, start: int, hits: int) -> dict[int, int]:
    bits, counts, expected = _Bits(coded), {}, start
    parameter = _Parameter(bits)
    for _ in range(hits):
        k = parameter.next()
        sign = -1 if bits.take(1) else 1
        position = expected + bits.rice(k)
        counts[position] = sign
        expected = position + 1
    bits.end()
    return counts


def _list(coded: bytes, listed: int, counts: dict[int, int]) -> None:
    bits, positions, expected = _Bits(coded), list(counts), 0
    of_gaps, of_magnitudes = _Parameter(bits), _Parameter(bits)
    for _ in range(listed):
        gap_k, k = of_gaps.next(), of_magnitudes.next()
        hit = expected + bits.rice(gap_k)
        counts[positions[hit]] *= bits.rice(k) + 2
        expected = hit + 1
    bits.end()


def _magnitudes(coded: bytes, counts: dict[int, int]) -> None:
    bits = _Bits(coded)
    parameter = _Parameter(bits)
    for position in counts:
        counts[position] *= bits.rice(parameter.next()) + 1
    bits.end()


def _dense(coded: bytes, start: int, length: int, largest: int) -> dict[int, int]:
    radix = 2 * largest + 1
    digits = max(d for d in range(65) if radix**d <= 2**64)
    assert len(coded) == -(-length // digits) * 8
    counts = {}
    for position in range(length):
        word, digit = divmod(position, digits)
        value = int.from_bytes(coded[8 * word : 8 * word + 8], "little")
        count = value // radix**digit % radix - largest
        if count:
            counts[start + position] = count
    return counts


def _bytes(coded: bytes, start: int, length: int) -> dict[int, int]:
    assert len(coded) == length
    assert 128 not in coded
    counts = {start + at: (byte + 128) % 256 - 128 for at, byte in enumerate(coded)}
    return {position: count for position, count in counts.items() if count}
