"""`VersionCounters`: whether a step has trained anything, as torch itself counts it.

Every change of a tensor in place raises its `_version`. So a step that was skipped, or one of
several that accumulate gradients, is known for what it is without a look at the parameters. What
the session writes does not count: it writes through another tensor of the same memory.

Not everything is counted: not what goes through ``parameter.data`` or an array of the same memory,
and not the steps of fused optimizers and CUDA graphs. So silence is believed only of parameters
whose counters have spoken before, and a sample of the vector shows when they stop doing so. What
one such step has trained is then sent with the next.
"""

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Final

import torch

SAMPLE_ELEMENTS: Final = 4096

_version: Final[Callable[[torch.Tensor], int]] = attrgetter("_version")


class VersionCounters:
    """The counters of some tensors, and the vector that these are parts of.

    Parameters
    ----------
    flat : Tensor of shape (N,)
        Where the tensors' values are after `TorchParameters.gather`.
    lengths : sequence of int
        Elements of each tensor in it: of each at least one is in the sample.
    """

    def __init__(self, flat: torch.Tensor, lengths: Sequence[int]) -> None:
        self._flat = flat
        self._index = _sample_of(lengths).to(flat.device)
        self._known: list[int] | None = None
        self._speaks: bool | None = None
        """Whether training raises the counters; None before they were raised for the first time."""
        self._sample: torch.Tensor | None = None
        """Of the vector after a step in which no counter was raised."""

    def moved(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Return whether the tensors may have changed since this or `note` was last called."""
        known = self._known
        self.note(tensors)
        if self._known is None or self._speaks is False:
            return True
        if self._known != known:
            self._speaks, self._sample = True, None
            return True
        if self._sample is not None and not torch.equal(self._sample, self._flat[self._index]):
            self._speaks = False
        elif self._speaks:
            self._sample = self._flat[self._index]
        return not self._speaks

    def note(self, tensors: Sequence[torch.Tensor]) -> None:
        """Take the counters for what they are now: somebody else than the training raised them."""
        try:
            self._known = list(map(_version, tensors))
        except RuntimeError:  # tensors made in inference mode count nothing
            self._known = None

    def note_written(self, tensors: Sequence[torch.Tensor]) -> None:
        """Note that the session has changed the vector, and perhaps tensors, by itself."""
        self.note(tensors)
        if self._sample is not None:
            self._sample = self._flat[self._index]


def _sample_of(lengths: Sequence[int]) -> torch.Tensor:
    """Return places all over the vector, at least one of each tensor that has any."""
    elements = sum(lengths)
    ends = torch.tensor(lengths, dtype=torch.int64).cumsum(0)
    middles = (ends - torch.tensor(lengths, dtype=torch.int64).div(2, rounding_mode="floor")) - 1
    middles = middles[torch.tensor(lengths) > 0]
    spread = torch.linspace(0, elements - 1, min(SAMPLE_ELEMENTS, elements), dtype=torch.float64)
    return torch.cat([middles, spread.long()])
