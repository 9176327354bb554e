"""A second decoder of encoded updates: slow, plain Python, written from the description alone.

It shares no code with `gradwire_codecs`, so that a mistake in the one is seen by the other.
"""

import struct


def reference_decode(body: bytes) -> dict[int, int]:
    """Return the change in quanta of every element that an encoded update changes."""
    coder, gap_k, magnitude_k, _, sections, start, length, hits, magnitude_max = struct.unpack(
        "<BBBBIIIII", body[:24]
    )
    multiples: list[int] = []
    position = 24
    for _ in range(sections):
        covered, position = _number(body, position)
        multiple, position = _number(body, position)
        multiples += [multiple] * covered
    if coder == 1:
        counts = _sparse(body[position:], start, hits, gap_k, magnitude_k)
    else:
        counts = _dense(body[position:], start, length, magnitude_max)
    return {i: count * multiples[i - start] for i, count in counts.items()}


def _number(body: bytes, position: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        number |= (body[position] & 0x7F) << shift
        position, shift = position + 1, shift + 7
        if body[position - 1] < 0x80:
            return number, position


def _sparse(coded: bytes, start: int, hits: int, gap_k: int, magnitude_k: int) -> dict[int, int]:
    bits = iter([byte >> j & 1 for byte in coded for j in range(8)])

    def rice(k: int) -> int:
        quotient = 0
        while next(bits) == 0:
            quotient += 1
        return (quotient << k) + sum(next(bits) << j for j in range(k))

    counts = {}
    position = start
    for _ in range(hits):
        position += rice(gap_k)
        sign = -1 if next(bits) else 1
        counts[position] = sign * (1 if magnitude_k == 255 else 1 + rice(magnitude_k))
        position += 1
    assert not any(bits), "bits behind the last hit"
    return counts


def _dense(coded: bytes, start: int, length: int, magnitude_max: int) -> dict[int, int]:
    radix = 2 * magnitude_max + 1
    digits = max(d for d in range(65) if radix**d <= 2**64)
    counts = {}
    for position in range(length):
        word, digit = divmod(position, digits)
        value = int.from_bytes(coded[8 * word : 8 * word + 8], "little")
        count = value // radix**digit % radix - magnitude_max
        if count:
            counts[start + position] = count
    return counts
