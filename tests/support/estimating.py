"""Inputs of estimates, for tests."""

from typing import Any

from hypothesis import strategies as st

from gradwire.cli.estimate.costs import Costs
from gradwire.cli.estimate.inputs import Inputs

COSTS = Costs(
    step_seconds=2e-4,
    pass_seconds_per_parameter=2.5e-10,
    encode_seconds_per_hit=1.5e-8,
    apply_seconds=3e-5,
    apply_seconds_per_hit=1.5e-8,
    network_seconds=2e-4,
    network_seconds_per_byte=5e-9,
    master_update_seconds=3e-4,
    master_seconds_per_hit=1.2e-8,
    master_delivery_seconds=1e-4,
    master_seconds_per_byte=5e-9,
)
"""About those of one core of an AMD EPYC."""


def inputs(**changed: Any) -> Inputs:
    """Return those of a model of 14.6 M parameters on 100 Mbit/s, but for what is given."""
    usual: dict[str, Any] = {
        "step_seconds": 0.1,
        "parameters": 14_600_000,
        "density": 0.001,
        "workers": 8,
        "link": 1e8,
        "link_up": 1e8,
        "master_link": 1e9,
        "rtt_seconds": 0.02,
        "costs": COSTS,
    }
    return Inputs(**usual | changed)


PLAUSIBLE = st.builds(
    inputs,
    step_seconds=st.floats(1e-3, 10.0),
    parameters=st.integers(10_000, 10**9),
    density=st.floats(1e-4, 0.2),
    workers=st.integers(1, 300),
    link=st.floats(1e5, 1e11),
    link_up=st.floats(1e5, 1e11),
    master_link=st.floats(1e5, 1e11),
    rtt_seconds=st.floats(0, 1),
    masters=st.integers(1, 16),
)
