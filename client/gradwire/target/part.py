"""`parts_of`: a target in parts, each of which has a master of its own.

Gathering and scattering are for all of the target: what one part asks for, all have. A restarted
master may be given its part of the replica by the network thread while another one does the same.
So all of that is done by one thread at a time.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise, starmap
from threading import Lock
from typing import Any, Final

import numpy.typing as npt

from gradwire.errors import UsageError
from gradwire.target.parameters import EVERYWHERE, Parameters
from gradwire_codecs import Feedback, Replica
from gradwire_codecs.arrays import Float32Array
from gradwire_protocol.messages.fields import BLOCK_ELEMENTS
from gradwire_protocol.messages.layout import NAME_CHARACTERS_MAX, Layout, Tensor

UNITS: Final = (BLOCK_ELEMENTS, 64, 1)
"""Parts end at multiples of the largest of these of which the smallest part has `UNITS_MIN`: whole
blocks of a replica, cache lines, elements."""

UNITS_MIN: Final = 8


def parts_of(parameters: Parameters, weights: Sequence[int]) -> "list[Part]":
    """Return a target in parts whose sizes are almost in proportion to these weights.

    Raises `UsageError` if it has too few elements.
    """
    spans = cut(parameters.layout.elements, weights)
    whole = _Whole(parameters, spans)
    return [Part(whole, number, span) for number, span in enumerate(spans)]


def cut(elements: int, weights: Sequence[int]) -> list[slice]:
    """Cut a vector into ranges in proportion to weights; all workers of a run cut alike."""
    total = sum(weights)
    smallest = elements * min(weights) // total
    if not smallest:
        raise UsageError(
            f"{elements} parameters cannot be divided among {len(weights)} masters, of which one "
            f"has {min(weights)}/{total} of them: name fewer masters, or weights that differ less"
        )
    unit = next((unit for unit in UNITS if smallest >= UNITS_MIN * unit), 1)
    ends = [before * elements // total // unit * unit for before in accumulate(weights, initial=0)]
    return list(starmap(slice, pairwise([*ends[:-1], elements])))


def layout_of_part(layout: Layout, span: slice) -> Layout:
    """Return the tensors in a range; one that is cut is named by its range, as ``weight[5:9]``."""
    tensors, at = [], 0
    for tensor in layout.tensors:
        first, end = max(span.start - at, 0), min(span.stop - at, tensor.elements)
        if (first, end) == (0, tensor.elements):
            tensors.append(tensor)
        elif first < end:
            name = f"{tensor.name}[{first}:{end}]"
            if len(name) > NAME_CHARACTERS_MAX:
                raise UsageError(
                    f"parameter {tensor.name!r} is divided among masters, and with its range its "
                    f"name has {len(name)} characters; the limit is {NAME_CHARACTERS_MAX}"
                )
            tensors.append(Tensor(name, (end - first,)))
        at += tensor.elements
    return Layout(tuple(tensors))


class _Whole:
    """The target of several parts."""

    def __init__(self, parameters: Parameters, spans: Sequence[slice]) -> None:
        self.parameters = parameters
        self.lock = Lock()
        self._spans = spans
        self._changed = [False] * len(spans)
        self._gradients: list[Float32Array | None] = [None] * len(spans)

    def changed(self, part: int) -> bool:
        """Return whether the target may have changed since this part last asked."""
        with self.lock:
            if self.parameters.changed():
                self._changed = [True] * len(self._spans)
            found, self._changed[part] = self._changed[part], False
        return found

    def take_gradient(self, part: int) -> Float32Array | None:
        """Return the gradient of a part since it last asked; those of the others wait for them."""
        gradient = self.parameters.take_gradient()
        if gradient is not None:
            for other, span in enumerate(self._spans):
                waiting = self._gradients[other]
                self._gradients[other] = (
                    gradient[span] if waiting is None else waiting + gradient[span]
                )
        found, self._gradients[part] = self._gradients[part], None
        return found


class Part:
    """`Parameters` of a range of a target, made by `parts_of`.

    Parameters
    ----------
    number : int
        Which of the parts it is, from 0 on.
    span : slice
        The elements of the target in it.
    """

    def __init__(self, whole: _Whole, number: int, span: slice) -> None:
        self.span = span
        self.layout = layout_of_part(whole.parameters.layout, span)
        self._whole = whole
        self._number = number

    @property
    def vector(self) -> Float32Array:
        """Shape (n,): this part of the target's vector."""
        return self._whole.parameters.vector[self.span]

    @property
    def whole(self) -> Parameters:
        """All of the target."""
        return self._whole.parameters

    def sample(self, where: slice) -> Any:
        """Return a copy of some elements of this part."""
        start, stop, step = where.indices(self.layout.elements)
        return self.whole.sample(slice(self.span.start + start, self.span.start + stop, step))

    def gather(self) -> None:
        """Copy changes of the target into its vector."""
        with self._whole.lock:
            self._whole.parameters.gather()

    def changed(self) -> bool:
        """Return whether the target may have changed since the last call."""
        return self._whole.changed(self._number)

    def scatter(self) -> None:
        """Copy changes of the vector into the target."""
        with self._whole.lock:
            self._whole.parameters.scatter()

    def set(self, values: Float32Array, where: slice = EVERYWHERE) -> None:
        """Set this part of the target, or a range of it."""
        with self._whole.lock:
            self._whole.parameters.set(values, self._in_whole(where))

    def take_gradient(self) -> Float32Array | None:
        """Return this part of the target's gradient."""
        return self._whole.take_gradient(self._number)

    def like_target(self, vector: Float32Array) -> Any:
        """Return a flat vector as an array or tensor, as the target is."""
        return self._whole.parameters.like_target(vector)

    def to_array(self, change: Any) -> npt.NDArray[Any]:
        """Return an array or tensor as an array."""
        return self._whole.parameters.to_array(change)

    def feedback(
        self, replica: Replica, *, portion: float, threads: int, where: slice = EVERYWHERE
    ) -> Feedback:
        """Return a feedback over this part of the vector, or over a range of it."""
        return self._whole.parameters.feedback(
            replica, portion=portion, threads=threads, where=self._in_whole(where)
        )

    def _in_whole(self, where: slice) -> slice:
        start, stop, _ = where.indices(self.layout.elements)
        return slice(self.span.start + start, self.span.start + stop)
