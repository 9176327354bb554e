"""Histograms as a worker sends them, and as the master shows them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from gradwire.features.layer_histograms import count_into
from gradwire_codecs.arrays import Float32Array
from gradwire_protocol.messages.logged.histograms import HISTOGRAM, QUANTITIES, Histograms
from gradwire_server.series.histograms import LayerHistograms


def counted(
    number: int,
    step: int,
    names: Sequence[str] = ("weight",),
    values: Float32Array | None = None,
    *,
    dropped: int = 0,
) -> Histograms:
    """Return a message with histograms of the same values for all quantities of all tensors."""
    sample = np.arange(8, dtype=np.float32) if values is None else values
    found = np.zeros((len(names), len(QUANTITIES)), HISTOGRAM)
    for layer, quantity in np.ndindex(found.shape):
        found[layer, quantity]["layer"], found[layer, quantity]["quantity"] = layer, quantity
        found[layer, quantity]["elements"] = len(sample)
        count_into(found[layer, quantity], sample)
    return Histograms(number, step, tuple(names), found.tobytes(), dropped)


def shown_in(histograms: LayerHistograms) -> dict[tuple[str, str], dict[str, Any]]:
    """Return what a master has, by tensor and quantity."""
    return {(each["layer"], each["quantity"]): each for each in histograms.shown()}
