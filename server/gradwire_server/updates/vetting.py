"""Vetting: whether an update is out of proportion to those of the other workers.

A worker with a valid key can still be broken or hostile. The size of its updates shows it: the L2
norm of their change, in quanta. The right size is not known in advance. So an update is compared
with what the *others* send: each other worker counts with the median of its last norms, and the
reference is the median of these. A worker's own updates never move its own limit, however slowly
they grow. As long as fewer than half of the others are broken, these do not raise the limit above
what an honest worker sends.

The size of updates falls during a training, down to nothing, and a worker that comes late, or comes
back, begins with large ones: its rate has not decayed, and its parameters are not where the others'
are. So the highest reference that there has been in the run counts, and at least `REFERENCE_MIN`.

Even so an honest worker may be one that no rule foresees. By default, outliers are counted, and the
log tells of the first one of a worker. Where an operator asks for it, and there are at least
`WORKERS_MIN` workers, the worker is put into quarantine, and told so at once. With fewer, the
master cannot tell which is broken: the worker with the larger updates, or all others.

As long as the other workers have sent too few updates, an update is not judged.

Honest workers differ, too. Measured were runs of 2 to 4 workers that train a network of 85,000
parameters with SGD or Adam, at densities of 1 % and 0.1 %. The largest update of equal workers had
3 times the reference at a density of 1 % and 16 times at 0.1 %; the last update, which sends the
whole residual, 5 times; that of a worker that sends only every tenth step 15 times, every fiftieth
step 29 times; that of a worker that was cut off for 300 steps 24 times. `OUTLIER_NORM_MULTIPLE`
leaves a margin of three times that. Where a threshold is far too small, a worker sends per element
as many thresholds as one update may have, and all the rest at the end: such updates do not show how
much the worker had to send, and are no reference.
"""

import math
from collections import deque
from collections.abc import Iterable
from statistics import median
from typing import Final, Literal, TypeAlias

import numpy as np

from gradwire_codecs import Update
from gradwire_codecs.feedback.feedback import MAGNITUDE_MAX
from gradwire_codecs.format.update import DenseUpdate

OutlierPolicy: TypeAlias = Literal["warn", "quarantine", "off"]

OUTLIER_NORM_MULTIPLE: Final = 100.0
"""An update above this multiple of the others' norm is an outlier; see the measurements above."""

REFERENCE_MIN: Final = 2.0**14
"""In quanta: 0.001 at the usual quantum. With the multiple, an update below a norm of 0.1 is no
outlier, whatever the others send: where a training has converged, they send next to nothing."""

WORKERS_MIN: Final = 8
"""So many workers there have to be in a run before one of them is put into quarantine."""

NORMS_KEPT: Final = 15
"""How many norms of a worker the median is taken of: with 15, one flush of a residual, or seven
updates of any size, do not move it beyond the norms of its other updates."""

NORMS_MIN: Final = 4
"""How many norms of a worker are needed before it counts as a reference."""


class Norms:
    """The norms of a worker's last updates."""

    __slots__ = ("_last", "_squares", "typical")

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=NORMS_KEPT)
        self._squares = 0.0
        self.typical: float | None = None
        """Their median; None while there are too few."""

    def note(self, norm: float) -> None:
        """Add the norm of an accepted update for which `is_sample` holds."""
        self._last.append(norm)
        if len(self._last) >= NORMS_MIN:
            self.typical = median(self._last)

    def note_part(self, norm: float) -> None:
        """Add the norm of a part of a contribution.

        Parts have norms of their own, as tensors do, and none has more than all of them together.
        """
        self._squares += norm * norm

    def end_contribution(self) -> None:
        """Add the norm of the parts together, if there were any."""
        if self._squares:
            self.note(math.sqrt(self._squares))
            self._squares = 0.0


def norm_of(update: Update) -> float:
    """Return the L2 norm of an update's change, in quanta; exact to some millionths."""
    # float32 is exact enough to compare with a factor of a hundred: 35 us for 250,000 elements,
    # where float64 takes 7 ms. The largest possible sum, 2^31 squares of 2^31, is far in its range.
    if isinstance(update, DenseUpdate):
        counts = update.counts.astype(np.float32)
        return update.multiple * math.sqrt(float(np.dot(counts, counts)))
    change = update.change.astype(np.float32)
    return math.sqrt(float(np.dot(change, change)))


def is_sample(update: Update) -> bool:
    """Return whether an update shows how much its worker had to send.

    It does not where an element has reached the limit of one update, or where it is empty.
    """
    count = update.count
    return count.size > 0 and max(int(count.max()), -int(count.min())) < MAGNITUDE_MAX


class Reference:
    """The norm that updates of a run are compared with: the highest that there has been."""

    __slots__ = ("_highest",)

    def __init__(self) -> None:
        self._highest: float | None = None

    def raise_to(self, now: float | None) -> float:
        """Take account of what others send now; return what counts, infinite while unknown."""
        if now is not None:
            self._highest = max(now, self._highest or REFERENCE_MIN)
        return math.inf if self._highest is None else self._highest


def reference_of(others: Iterable[Norms]) -> float | None:
    """Return the norm to compare a worker's updates with; None while too few are known.

    `others` are those of all other workers that are not in quarantine.
    """
    typical = sorted(norms.typical for norms in others if norms.typical is not None)
    # Of an even number, the upper median: a worker that sends little must not make another one look
    # large.
    return typical[len(typical) // 2] if typical else None
