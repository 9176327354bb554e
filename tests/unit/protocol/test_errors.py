"""The errors: one tree, whose branches say who has to act."""

import inspect

import pytest

from gradwire_protocol import (
    ConnectionLostError,
    DeadlineError,
    GradwireError,
    InvalidDatagramError,
    InvalidMessageError,
    ProtocolError,
    RefusedError,
    TransportError,
    UnreachableError,
    UsageError,
    VersionMismatchError,
    ViolationError,
    errors,
)


@pytest.mark.parametrize(
    ("error", "branch"),
    [
        (UnreachableError, TransportError),
        (ConnectionLostError, TransportError),
        (DeadlineError, TransportError),
        (InvalidDatagramError, ProtocolError),
        (InvalidMessageError, ProtocolError),
        (VersionMismatchError, ProtocolError),
        (ViolationError, ProtocolError),
        (DeadlineError, TimeoutError),
        (UsageError, ValueError),
    ],
)
def test_an_error_belongs_to_whoever_has_to_act_and_to_what_python_has_a_word_for(
    error: type[GradwireError], branch: type[Exception]
) -> None:
    assert issubclass(error, branch)


def test_one_class_catches_all() -> None:
    classes = [member for _, member in inspect.getmembers(errors, inspect.isclass)]

    assert [c for c in classes if not issubclass(c, GradwireError)] == []


def test_a_refusal_knows_its_reason() -> None:
    error = RefusedError("run_full", "16 workers take part, which is the limit")

    assert (error.code, str(error)) == ("run_full", "16 workers take part, which is the limit")
