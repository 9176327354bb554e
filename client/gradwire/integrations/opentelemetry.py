"""`observe`: a session's numbers as instruments of OpenTelemetry.

::

    from gradwire.integrations.opentelemetry import observe
    from opentelemetry import metrics

    observe(session, metrics.get_meter("gradwire"))

Counters are counters and gauges are gauges. Names follow OpenTelemetry's conventions: parts
separated by dots, and the unit beside the name instead of in it: ``gradwire.session.wait`` in ``s``
is the metric ``gradwire_session_wait_seconds_total`` for Prometheus.
"""

from collections.abc import Iterable
from functools import partial
from typing import Final

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from gradwire.replica.stats import STATISTICS
from gradwire.session.session import Session

UNITS: Final = {"_seconds": "s", "_steps": "{step}"}
"""By the end of a name, which is left out then."""

BYTES: Final = "bytes_"


class _Numbers:
    """The numbers of one moment: all instruments are read at once, one after the other."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._numbers: dict[str, int | float] = {}
        self._read: set[str] = set()

    def observe(self, name: str, options: CallbackOptions) -> Iterable[Observation]:
        """Return a number; nothing where there is none now. A second time, it is a new one."""
        if name in self._read or not self._numbers:
            self._numbers = self._session.stats.numbers()
            self._read.clear()
        self._read.add(name)
        if name in self._numbers:
            yield Observation(self._numbers[name])


def observe(session: Session, meter: Meter) -> None:
    """Have a meter observe the numbers of a session, when its reader asks.

    Parameters
    ----------
    session : Session
        May be finished or closed; its last numbers then stay.
    meter : opentelemetry.metrics.Meter
    """
    numbers = _Numbers(session)
    for name, statistic in STATISTICS.items():
        create = {
            "counter": meter.create_observable_counter,
            "gauge": meter.create_observable_gauge,
        }.get(statistic.kind or "")
        if create is not None:
            shown, unit = _name_and_unit(name)
            callback = partial(numbers.observe, name)
            create(shown, [callback], unit=unit, description=statistic.text.replace("`", ""))


def _name_and_unit(name: str) -> tuple[str, str]:
    """Return the name of an instrument, and its unit."""
    prefix = "gradwire.session."
    if name.startswith(BYTES):
        return prefix + name, "By"
    for end, unit in UNITS.items():
        if name.endswith(end):
            return prefix + name.removesuffix(end), unit
    return prefix + name, ""
