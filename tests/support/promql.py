"""What a PromQL expression asks for: metrics, labels, and the labels of what it returns."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from promql_parser import (
    AggModifierType,
    AggregateExpr,
    BinaryExpr,
    Call,
    MatrixSelector,
    VectorSelector,
    parse,
)

OF_PROMETHEUS: Final = frozenset({"job", "instance"})
"""Labels that Prometheus itself gives to all that it scrapes."""

SERIES_OF_PROMETHEUS: Final = {
    "up": frozenset[str](),
    "ALERTS": frozenset({"alertname", "alertstate", "severity", "run", "reason"}),
}
"""Series that Prometheus makes itself, with their labels besides those."""

OVER_COUNTERS: Final = frozenset({"rate", "increase"})
"""Functions that mean nothing for a gauge."""


@dataclass(frozen=True)
class Selector:
    """A metric in an expression."""

    metric: str
    matched: Mapping[str, str]
    """Values that labels are compared with, by label."""
    function: str = ""
    """What is called with its range."""


def read(expression: str) -> Any:
    """Return the tree of an expression, of a dashboard too; raise `ValueError` if it is none."""
    return parse(expression.replace("$__rate_interval", "1m"))


def selectors(expression: str) -> list[Selector]:
    """Return every metric that an expression asks for."""
    return list(_selectors(read(expression), ""))


def grouping_labels(expression: str) -> set[str]:
    """Return the labels that an expression groups by, or matches on."""
    found: set[str] = set()
    for node in _nodes(read(expression)):
        match node:
            case AggregateExpr(modifier=modifier) if modifier is not None:
                found.update(modifier.labels)
            case BinaryExpr(modifier=modifier) if modifier is not None and modifier.matching:
                found.update(modifier.matching.labels)
            case _:
                pass
    return found


def result_labels(expression: str, labels_of: Callable[[str], frozenset[str]]) -> set[str]:
    """Return the labels that the results of an expression have.

    Parameters
    ----------
    expression : str
    labels_of : callable
        Returns the labels of a metric.
    """
    return _result_labels(read(expression), labels_of)


def _children(node: Any) -> list[Any]:
    match node:
        case BinaryExpr(lhs=left, rhs=right):
            return [left, right]
        case Call(args=arguments):
            return list(arguments)
        case MatrixSelector(vector_selector=selector):
            return [selector]
        case _:
            return [node.expr] if hasattr(node, "expr") else []


def _nodes(node: Any) -> Iterator[Any]:
    yield node
    for child in _children(node):
        yield from _nodes(child)


def _selectors(node: Any, function: str) -> Iterator[Selector]:
    if isinstance(node, VectorSelector):
        assert node.name is not None, f"no metric is named: {node}"
        yield Selector(node.name, {m.name: m.value for m in node.matchers.matchers}, function)
    if isinstance(node, Call):
        function = node.func.name
    for child in _children(node):
        yield from _selectors(child, function)


def _result_labels(node: Any, labels_of: Callable[[str], frozenset[str]]) -> set[str]:
    match node:
        case VectorSelector(name=str(name)):
            return {*labels_of(name), *OF_PROMETHEUS}
        case AggregateExpr(modifier=modifier) if modifier is not None:
            assert modifier.type == AggModifierType.By, "`without` does not say what is left"
            return set(modifier.labels)
        case AggregateExpr():
            return set()
        case _:
            of_children = [_result_labels(each, labels_of) for each in _children(node)]
            labels = next(filter(None, of_children), set())
            return labels - {"le"}
