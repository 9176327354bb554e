"""The errors: one tree, whose branches say who has to act."""

import inspect

import pytest

from gradwire_protocol import (
    CloseCode,
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
    ],
)
def test_an_error_belongs_to_whoever_has_to_act(
    error: type[GradwireError], branch: type[GradwireError]
) -> None:
    assert issubclass(error, branch)


def test_one_class_catches_all() -> None:
    classes = [member for _, member in inspect.getmembers(errors, inspect.isclass)]

    assert [c for c in classes if not issubclass(c, GradwireError)] == []


def test_what_python_has_a_word_for_can_be_caught_by_that_word() -> None:
    assert issubclass(DeadlineError, TimeoutError)
    assert issubclass(UsageError, ValueError)


def test_a_violation_knows_the_code_to_close_with() -> None:
    error = ViolationError("too much", CloseCode.FLOW_CONTROL)

    assert (error.code, str(error)) == (CloseCode.FLOW_CONTROL, "too much")


def test_a_refusal_knows_its_reason() -> None:
    error = RefusedError("run_full", "16 workers take part, which is the limit")

    assert (error.code, str(error)) == ("run_full", "16 workers take part, which is the limit")
