"""`GradwireTracker` for accelerate: what ``accelerator.log`` gets goes to the master, too."""

from typing import Any

from accelerate.tracking import GeneralTracker

from gradwire.integrations.scalar_log import ScalarLog
from gradwire.session.session import Session


class GradwireTracker(GeneralTracker):
    """A tracker of accelerate that hands what it gets to `Session.log`.

    ::

        accelerator = Accelerator()
        model, optimizer, data = accelerator.prepare(model, optimizer, data)
        with gradwire.join(model, optimizer=optimizer) as session:
            accelerator.trackers.append(GradwireTracker(session))

    It takes numbers alone, as trackers of accelerate do; when the session is over, it does nothing.

    Parameters
    ----------
    session : Session
    """

    name = "gradwire"
    requires_logging_directory = False
    main_process_only = False

    def __init__(self, session: Session) -> None:
        super().__init__()
        self._session = session
        self._log = ScalarLog()

    @property
    def tracker(self) -> Session:
        """The session."""
        return self._session

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Do nothing."""

    def log(self, values: dict[str, Any], step: int | None = None, **more: object) -> None:
        """Have the master keep what a script logs."""
        self._log.hand_on(self._session, values, step)
