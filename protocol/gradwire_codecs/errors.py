"""The errors of this package, all of them subclasses of `CodecError`.

The package knows no network and no session, so these errors name array positions. The client
turns them into errors that name parameters.
"""


class CodecError(ValueError):
    """Base of all errors of this package. The arrays are as they were before the call."""


class NonFiniteError(CodecError):
    """An element is NaN or infinite.

    Attributes
    ----------
    index : int
        Its position in the flat vector.
    value : float
    """

    def __init__(self, index: int, value: float) -> None:
        super().__init__(f"element {index} is {value}; only finite numbers can be shared")
        self.index = index
        self.value = value

    def __reduce__(self) -> tuple[type["NonFiniteError"], tuple[int, float]]:
        return type(self), (self.index, self.value)


class OutOfRangeError(CodecError):
    """An element has left the range that the quantum of the run can express.

    Attributes
    ----------
    index : int
        Its position in the flat vector.
    value : float
    limit : float
        The largest magnitude that the quantum can express.
    """

    def __init__(self, index: int, value: float, limit: float) -> None:
        super().__init__(
            f"element {index} is {value:g}; this quantum expresses magnitudes below {limit:g}"
        )
        self.index = index
        self.value = value
        self.limit = limit

    def __reduce__(self) -> tuple[type["OutOfRangeError"], tuple[int, float, float]]:
        return type(self), (self.index, self.value, self.limit)


class MalformedUpdateError(CodecError):
    """Bytes that are not an encoded update of this vector. Nothing was applied."""
