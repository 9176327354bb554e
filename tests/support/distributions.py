"""Histograms as workers send them, and as a master shows them."""

from typing import Any

import numpy as np

from gradwire_protocol.messages.operating.histograms import (
    BINS,
    HISTOGRAM,
    QUANTITIES,
    Histograms,
)
from gradwire_server.series.series import Series

Shown = dict[str, Any]


def histograms(number: int, step: int, *names: str, **fields: Any) -> Histograms:
    """Return a message of a worker: of each tensor 32 values from 0 to the step."""
    packed = np.zeros((len(names), len(QUANTITIES)), HISTOGRAM)
    packed["layer"] = np.arange(len(names))[:, None]
    packed["quantity"] = np.arange(len(QUANTITIES))
    packed["elements"] = BINS
    packed["highest"] = step
    packed["bins"] = 1
    said: dict[str, Any] = {"age": 0, "tensors": max(len(names), 1), "dropped": 0}
    return Histograms(
        number, step, **{**said, "names": names, "histograms": packed.tobytes(), **fields}
    )


def shown_in(series: Series, *, history: bool = True) -> dict[tuple[str, str], list[Shown]]:
    """Return what a master shows, by tensor and quantity."""
    found: dict[tuple[str, str], list[Shown]] = {}
    for shown in series.histograms.shown(history=history):
        if shown is not None:
            found.setdefault((shown["layer"], shown["quantity"]), []).append(shown)
    return found


def steps_in(series: Series, layer: str, quantity: str = "parameters") -> list[int]:
    """Return the steps of which a master has histograms of a tensor."""
    return [shown["step"] for shown in shown_in(series).get((layer, quantity), [])]
