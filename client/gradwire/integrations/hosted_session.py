"""`HostedSession`: a session in a training loop that belongs to a framework.

A framework calls its adapter at the events of its loop, and every adapter passes them to a
`HostedSession`: so all adapters join, pause, resume and end in the same way. This module knows no
framework.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from inspect import signature
from typing import Any, Final

import torch

from gradwire.errors import UsageError
from gradwire.features.own_figures import PREFIX
from gradwire.integrations.scalar_log import ScalarLog
from gradwire.session.join import join
from gradwire.session.session import Session

KEYWORDS: Final = signature(join).parameters.keys() - {"target", "optimizer"}
"""Keywords of `join` that do not come from the framework."""


class HostedSession:
    """At most one session at a time, from the beginning of a training to its end.

    Parameters
    ----------
    settings : mapping
        Keywords of `gradwire.join`, except target and optimizer.
    logs : bool
        Whether `log` does anything.

    Raises
    ------
    UsageError
        If a keyword is unknown.
    """

    session: Session | None = None
    """The last session, open or over; None before the first."""

    def __init__(self, settings: Mapping[str, Any], *, logs: bool = True) -> None:
        unknown = sorted(settings.keys() - KEYWORDS)
        if unknown:
            raise UsageError(f"unknown settings: {', '.join(unknown)}")
        self._keywords = dict(settings)
        self._open: Session | None = None
        self._log = ScalarLog() if logs else None
        self._pauses = ExitStack()
        self._state: Mapping[str, Any] | None = None
        """State for the next session."""

    @property
    def is_open(self) -> bool:
        """Whether the session of a training is open."""
        return self._open is not None

    @property
    def is_to_end(self) -> bool:
        """Whether training is to end, by the word of another worker or an operator."""
        return self._open is not None and self._open.stopping is not None

    def end_everywhere(self, reason: str) -> None:
        """Have all workers end their training, because the framework of this one ends it."""
        if self._open is not None and self._open.stopping is None:
            self._open.stop_training(reason)

    def begin(self, model: torch.nn.Module, optimizer: object) -> Session:
        """Join, which waits for the other workers, and restore the state that was loaded.

        A session that is still open is closed: its training failed, and the framework did not say
        so.
        """
        self.close("the next training began")
        session = join(model, optimizer=optimizer, **self._keywords)
        self.session = self._open = session
        try:
            if self._state is not None:
                session.load_state_dict(self._state)
                self._state = None
        except BaseException as error:
            self.close(f"{type(error).__name__}: {error}")
            raise
        return session

    def step(self) -> None:
        """Share what the optimizers have changed."""
        if self._open is not None:
            self.resume()
            self._open.step()

    def pause(self) -> None:
        """Apply no updates until `resume`, or the next step. Can be repeated."""
        if self._open is not None:
            self.resume()
            self._pauses.enter_context(self._open.paused())

    def resume(self) -> None:
        """End a pause, if there is one."""
        self._pauses.close()

    def finish(self) -> None:
        """Finish together with the other workers; then all of them have the same bits.

        The session is over afterwards, also where this fails.
        """
        if self._open is not None:
            self.resume()
            try:
                self._open.finish()
            except BaseException as error:
                self.close(f"{type(error).__name__}: {error}")
                raise
            self._open = None

    def close(self, reason: str) -> None:
        """Leave the run at once; the other workers go on. Can be repeated."""
        session, self._open = self._open, None
        if session is not None:
            self.resume()
            session.close(reason)

    # State and statistics.

    def state_dict(self) -> dict[str, Any]:
        """Return the session's state for a checkpoint; empty where no session is open."""
        return {} if self._open is None else self._open.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Keep what `state_dict` returned for the next session."""
        self._state = dict(state) or None

    def figures(self) -> dict[str, float]:
        """Return every number of `Session.stats`, as ``gradwire/NAME``."""
        if self.session is None:
            return {}
        return {PREFIX + name: value for name, value in self.session.stats.numbers().items()}

    def log(self, values: Mapping[str, Any], step: int | None = None) -> None:
        """Have the master keep the numbers that a framework logs, where a session is open."""
        if self._open is not None and self._log is not None:
            self._log.hand_on(self._open, values, step)
