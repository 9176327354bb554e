"""`Reader`: takes an input apart into numbers and pieces, whatever its length."""


class Reader:
    """Reads bytes from the front; behind the last one come zeros.

    Parameters
    ----------
    data : bytes
    """

    __slots__ = ("_at", "_data")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def __bool__(self) -> bool:
        """Return whether anything is left."""
        return self._at < len(self._data)

    def integer(self, size: int) -> int:
        """Return an unsigned little-endian number of so many bytes."""
        return int.from_bytes(self.take(size), "little")

    def take(self, size: int) -> bytes:
        """Return the next bytes, fewer at the end."""
        taken = self._data[self._at : self._at + size]
        self._at += size
        return taken

    def piece(self) -> bytes:
        """Return bytes behind their length in two bytes, as `piece` wrote them."""
        return self.take(self.integer(2))

    def rest(self) -> bytes:
        """Return all that is left."""
        return self.take(len(self._data))


def piece(data: bytes) -> bytes:
    """Return bytes behind their length."""
    return len(data).to_bytes(2, "little") + data


def steps(*steps: tuple[int, bytes]) -> bytes:
    """Return steps as targets read them: a byte of how, and a piece."""
    return b"".join(bytes([how]) + piece(data) for how, data in steps)
