"""`ScalarLog`: what a framework logs, handed to `Session.log`."""

import logging
from collections.abc import Mapping
from numbers import Real
from typing import Any, Final

from gradwire.errors import UsageError
from gradwire.features.own_figures import PREFIX
from gradwire.session.session import Session

logger = logging.getLogger("gradwire.integrations")

SAID_MAX: Final = 16
"""Complaints that the log has."""


class ScalarLog:
    """Hands on what a framework logs: numbers alone, which are read off their device already.

    What `Session.log` does not take is left out, and said once. The session's own statistics, which
    a framework may log, are not handed back.
    """

    def __init__(self) -> None:
        self._said: set[str] = set()

    def hand_on(self, session: Session, values: Mapping[str, Any], step: int | None) -> None:
        """Have the master keep the numbers among some values, unless the session is over."""
        if not session.is_open:
            return
        for name, value in values.items():
            if not isinstance(value, Real) or name.startswith(PREFIX):
                continue
            try:
                session.log({name: value}, step=step)
            except UsageError as error:
                self._say(f"the master does not get what the framework logs: {error}")

    def _say(self, complaint: str) -> None:
        if complaint not in self._said and len(self._said) < SAID_MAX:
            self._said.add(complaint)
            logger.warning("%s", complaint)
