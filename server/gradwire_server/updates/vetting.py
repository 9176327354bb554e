"""Vetting: whether an update is out of proportion to what the other workers send.

A worker that may take part can still be broken or hostile. What gives it away is the size of its
updates: the L2 norm of what they change, in quanta. How large it may be is not known beforehand,
and falls in the course of a training, so an update is compared with what the *others* send now:
each other worker counts with the median of its last norms, and the reference is the median of
these. What a worker sends itself moves its own limit by nothing, be it ever so slow, and as long as
fewer than half of the others are broken, they do not move it beyond what an honest one sends.

An update of a worker whose others have sent too little yet is not judged. With a single other
worker that one is the reference; which of the two is broken nobody can know then, and it is the
larger one that is held.

Honest workers differ, too. Measured were runs of 2 to 4 workers that train a network of 85,000
parameters with SGD or Adam, at densities of 1 % and 0.1 %. The largest update of equal workers had
3 times the reference at a density of 1 % and 16 times at 0.1 %; the last one, which sends the whole
residual, 5 times; that of a worker that sends only every tenth step 15 times, every fiftieth step
29 times; that of one that was cut off for 300 steps 24 times. `OUTLIER_NORM_MULTIPLE` leaves three
times that. Where a threshold is far too small, a worker sends only as many thresholds per element
as one update may have, and all the rest at the end: such updates say nothing of what there is to
send, and are no reference.
"""

import math
from collections import deque
from collections.abc import Iterable
from statistics import median
from typing import Final, Literal, TypeAlias

import numpy as np

from gradwire_codecs import Update
from gradwire_codecs.feedback.feedback import MAGNITUDE_MAX

OutlierPolicy: TypeAlias = Literal["quarantine", "clip", "off"]

OUTLIER_NORM_MULTIPLE: Final = 100.0
"""An update is an outlier beyond this multiple of the others' norm; its reason is above."""

NORMS_KEPT: Final = 15
"""Norms of a worker that its median is taken of: so many that one flush of a residual, or seven
updates of any size, do not move it beyond what its other updates are."""

NORMS_MIN: Final = 4
"""Norms of a worker before it serves as a reference: its first updates are no sample."""


class Norms:
    """The norms of a worker's last updates."""

    __slots__ = ("_last", "typical")

    def __init__(self) -> None:
        self._last: deque[float] = deque(maxlen=NORMS_KEPT)
        self.typical: float | None = None
        """Their median; None while there are too few."""

    def note(self, norm: float) -> None:
        """Take in the norm of an update that was accepted and is a sample."""
        self._last.append(norm)
        if len(self._last) >= NORMS_MIN:
            self.typical = median(self._last)


def norm_of(update: Update) -> float:
    """Return the L2 norm of what an update changes, in quanta; exact to some millionths."""
    # float32, because it is a comparison with a factor of a hundred: 35 us for 250,000 elements,
    # where float64 takes 7 ms. The largest sum there is, 2^31 squares of 2^31, is far in its range.
    change = update.change.astype(np.float32)
    return math.sqrt(float(np.dot(change, change)))


def is_sample(update: Update) -> bool:
    """Return whether an update shows how much its worker had to send.

    Not where elements were cut off, and not where it only says that there was a step.
    """
    count = update.count
    return count.size > 0 and max(int(count.max()), -int(count.min())) < MAGNITUDE_MAX


def reference_of(others: Iterable[Norms]) -> float | None:
    """Return the norm that a worker's updates are compared with; None where nothing is known.

    Parameters
    ----------
    others : iterable of Norms
        Of all workers but this one that are not in quarantine.
    """
    typical = sorted(norms.typical for norms in others if norms.typical is not None)
    # Of an even number the larger one in the middle: who sends little must not make another one
    # look large.
    return typical[len(typical) // 2] if typical else None
