"""The errors of the client: one tree, and each where its reader looks for it."""

import pickle
from copy import deepcopy

import pytest

import gradwire
import gradwire_codecs as codecs
from gradwire import errors
from gradwire_protocol import ViolationError


def test_every_error_can_be_caught_as_one() -> None:
    names = set(errors.__all__) - {"GradwireWarning"}
    assert {name for name in names if name.endswith("Error")} == names
    for name in names:
        assert issubclass(getattr(errors, name), gradwire.GradwireError)
    assert issubclass(errors.GradwireWarning, UserWarning)


@pytest.mark.parametrize(
    "error",
    [
        *(getattr(errors, name)("no answer") for name in errors.__all__ if name != "RefusedError"),
        errors.RefusedError("run_full", "the run is full"),
        ViolationError("a packet of nobody", 7),
        codecs.NonFiniteError(3, float("inf")),
        codecs.OutOfRangeError(3, 1e9, 128.0),
    ],
    ids=lambda error: f"{type(error).__module__}.{type(error).__name__}",
)
def test_an_error_of_another_process_is_the_same_here(error: Exception) -> None:
    """Frameworks that start processes send errors home: Spark, Ray, a pool."""
    for copy in (pickle.loads(pickle.dumps(error)), deepcopy(error)):
        assert type(copy) is type(error)
        assert (str(copy), vars(copy)) == (str(error), vars(error))
