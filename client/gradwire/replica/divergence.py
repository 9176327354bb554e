"""`Divergence`: says that training diverges, early by a warning and at the end by an error.

gradwire does not see the loss. It sees the parameters: in a training that diverges they grow faster
and faster, until one leaves the range of the run's integers or becomes infinite or NaN. That is an
error of the training and not of the network, so the error says what the training was like then.
"""

import math
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import numpy as np

from gradwire.errors import DivergedError, GradwireWarning
from gradwire.optimizer.delays import LATE_STEPS, Delays
from gradwire.replica.shared_parameters import SharedParameters
from gradwire.replica.stats import Tally
from gradwire.settings.training import Scale
from gradwire.worker.membership import Membership
from gradwire_codecs import NonFiniteError as NotFinite
from gradwire_codecs import OutOfRangeError as OutOfRange
from gradwire_protocol.messages.modes.mode import model_of

LOOK_EVERY: Final = 8
LOOK_ALWAYS_UNTIL: Final = 32
SAMPLE_ELEMENTS: Final = 4096
"""The parameters are looked at in the first steps, and in every eighth one after them. A look reads
a sample of them: in training that diverges, most of them grow."""

WINDOW_PART: Final = 0.25
WINDOW_STEPS_MIN: Final = 8
WINDOW_STEPS_MAX: Final = 512
"""Growth is judged over the last quarter of all steps, within these limits."""

GROWTH_MAX: Final = 2.25
"""Most that parameters may grow within the window. Parameters that begin at 0 grow to 4/3 of their
size within it at a constant learning rate, and to 16/9 at a rate that rises from 0; in a training
that diverges they grow exponentially."""

TIMES_FIRST_MIN: Final = 8.0
"""Parameters of less than so many times their first size have room to grow."""

STEPS_MIN: Final = 16
STEPS_MIN_FROM_ZERO: Final = 64
"""Before that, growth says nothing: momentum is still building up, which takes parameters that
begin at 0 from one size to another."""

JUMP: Final = 0.5
"""A parameter whose unsent part is more than this part of it has not grown out of the run's range
little by little: it has jumped."""

RATES_SHOWN: Final = 3


class Divergence:
    """Watches one worker's training.

    Parameters
    ----------
    scale : str or float
        The setting of that name.
    shared : SharedParameters
    membership : Membership
    delays : Delays
    tally : Tally
    """

    learning_rates: Callable[[], Sequence[float]] | None = None
    """Returns the optimizer's learning rates; None where `join` was given no optimizer."""

    def __init__(
        self,
        scale: Scale,
        shared: SharedParameters,
        membership: Membership,
        delays: Delays,
        tally: Tally,
    ) -> None:
        self._layout = shared.parameters.layout
        self._parameters = model_of(self._layout).elements
        self._scale = scale
        self._shared = shared
        self._membership = membership
        self._delays = delays
        self._tally = tally
        self._first_size = self._size()
        self._sizes: deque[tuple[int, float]] = deque(
            maxlen=LOOK_ALWAYS_UNTIL + WINDOW_STEPS_MAX // LOOK_EVERY
        )
        """The last looks: how many steps were made, and the size of the parameters then."""
        self._has_warned = False

    def note_step(self) -> None:
        """Look at the parameters now and then; warn once where they grow too fast."""
        steps = self._tally.steps
        if self._has_warned or (steps > LOOK_ALWAYS_UNTIL and steps % LOOK_EVERY):
            return
        size, before = self._size(), self._size_before_window(steps)
        self._sizes.append((steps, size))
        if before is None or size < max(GROWTH_MAX * before, TIMES_FIRST_MIN * self._first_size):
            return
        self._has_warned = True
        warnings.warn(
            f"training seems to diverge: the parameters have grown to {size:.3g} (root mean "
            f"square), from {before:.3g} shortly before and {self._first_size:.3g} at first. "
            f"{self._circumstances()}",
            GradwireWarning,
            stacklevel=2,
        )

    @contextmanager
    def named_errors(self) -> Iterator[None]:
        """Raise what the codecs raise inside the block by the name of the parameter.

        Raises
        ------
        DivergedError
            If a parameter is NaN or infinite, or has left the range of the run in one jump.
        OutOfRangeError
            If it has left the range little by little.
        """
        try:
            yield
        except NotFinite as error:
            name = self._layout.locate(error.index)
            raise self.error(f"parameter {name} is {error.value}; nothing was sent") from None
        except OutOfRange as error:
            if self._has_jumped(error):
                name = self._layout.locate(error.index)
                raise self.error(
                    f"parameter {name} is {error.value:g}, and the run expresses magnitudes below "
                    f"{error.limit:g}; nothing was sent"
                ) from None
            with self._shared.named_errors():
                raise

    def error(self, what: str) -> DivergedError:
        """Return an error that says what happened, how the training stood, and what to do."""
        return DivergedError(f"training diverges: {what}. {self._circumstances()}")

    # Private.

    def _size_before_window(self, steps: int) -> float | None:
        """Return the size at the beginning of the window; None where growth says nothing yet."""
        if steps < (STEPS_MIN if self._first_size else STEPS_MIN_FROM_ZERO):
            return None
        window = min(max(int(WINDOW_PART * steps), WINDOW_STEPS_MIN), WINDOW_STEPS_MAX)
        sizes = [size for step, size in self._sizes if step <= steps - window]
        return sizes[-1] if sizes and sizes[-1] else None

    def _size(self) -> float:
        """Return the root mean square of the parameters, from a sample."""
        feedback = self._shared.feedback
        stride = -(-len(feedback.replica) // SAMPLE_ELEMENTS)
        sample = feedback.trained_sample(SAMPLE_ELEMENTS)[: -(-self._parameters // stride)]
        sample = sample.astype(np.float64)
        return math.sqrt(float(np.dot(sample, sample)) / sample.size)

    def _has_jumped(self, outside: OutOfRange) -> bool:
        where = slice(outside.index, outside.index + 1)
        unsent = float(self._shared.feedback.residual(where)[0])
        return not abs(unsent) <= JUMP * abs(outside.value)

    def _circumstances(self) -> str:
        workers = len(self._membership.peers)
        late = self._delays.network_delay_steps(workers)
        rates = () if self.learning_rates is None else self.learning_rates()
        shown = ", ".join(f"{rate:.3g}" for rate in rates[:RATES_SHOWN])
        rate = f"learning rate {shown}" if shown else "a learning rate that join was not told"
        remedies = ["lower the learning rate, or clip gradients"]
        if late > LATE_STEPS and self._tally.staleness_bound is None:
            remedies.append("pass staleness_bound=0, because updates come late")
        if self._scale == "sum" and workers > 1:
            remedies.append("leave scale at 'auto', because changes of all workers are added up")
        return (
            f"This was step {self._tally.steps} with {rate}, scale {self._tally.scale:.3g}, "
            f"{workers} workers and staleness {self._delays.staleness:.3g} ({late:.2g} steps "
            f"late). Go back to a checkpoint, and {'; or '.join(remedies)}"
        )
