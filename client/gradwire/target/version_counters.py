"""`VersionCounters`: whether a step has trained anything, by torch's own counters.

Every change of a tensor in place raises its `_version`. So the session recognizes a skipped step,
or one that only accumulates gradients, without reading the parameters. What the session itself
writes is not counted, because it writes through another tensor of the same memory.

torch does not count changes through ``parameter.data`` or an array of the same memory, nor the
steps of fused optimizers and CUDA graphs. So an unchanged counter means "nothing was trained" only
if training has raised the counters before, and a sample of the vector shows when that stops. The
changes of the one step in between are sent with the next step.
"""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Final

import torch

SAMPLE_ELEMENTS: Final = 4096

_version: Final[Callable[[torch.Tensor], int]] = attrgetter("_version")


class VersionCounters:
    """The counters of the tensors that make up a vector.

    Parameters
    ----------
    flat : Tensor of shape (N,)
        Has the tensors' values after `TorchParameters.gather`.
    lengths : sequence of int
        Elements of each tensor; the sample has at least one of each.
    """

    def __init__(self, flat: torch.Tensor, lengths: Sequence[int]) -> None:
        self._flat = flat
        self._index = _sample_of(lengths).to(flat.device)
        self._known: list[int] | None = None
        self._is_raised: bool | None = None
        """Whether training raises the counters; None until it has done so once."""
        self._sample: torch.Tensor | None = None
        """Elements of the vector after a step that raised no counter."""

    def may_have_changed(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Return whether the tensors may have changed since this or `note` was last called."""
        known = self._known
        self.note(tensors)
        if self._known is None or self._is_raised is False:
            return True
        if self._known != known:
            self._is_raised, self._sample = True, None
            return True
        if self._sample is not None and not torch.equal(self._sample, self._flat[self._index]):
            self._is_raised = False
        elif self._is_raised:
            self._sample = self._flat[self._index]
        return not self._is_raised

    def note(self, tensors: Sequence[torch.Tensor]) -> None:
        """Take the present counters as the last known: something else than training raised them."""
        try:
            self._known = list(map(_version, tensors))
        except RuntimeError:  # tensors made in inference mode count nothing
            self._known = None

    def note_written(self, tensors: Sequence[torch.Tensor]) -> None:
        """Note that the session itself has changed the vector, and perhaps tensors."""
        self.note(tensors)
        if self._sample is not None:
            self._sample = self._flat[self._index]


def _sample_of(lengths: Sequence[int]) -> torch.Tensor:
    """Return indices all over the vector, at least one in each tensor that is not empty."""
    elements, sizes = sum(lengths), torch.tensor(lengths, dtype=torch.int64)
    middles = (sizes.cumsum(0) - sizes // 2 - 1)[sizes > 0]
    spread = torch.linspace(0, elements - 1, min(SAMPLE_ELEMENTS, elements), dtype=torch.float64)
    return torch.cat([middles, spread.long()])
