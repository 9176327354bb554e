"""Settings: what a declaration says is what is checked, and what texts stand for."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gradwire_protocol import UsageError
from gradwire_protocol.settings import check_settings, declared_settings, setting
from support.wording import naming


@dataclass(frozen=True, kw_only=True)
class Inherited:
    ratio: float | None = setting(None, "Between.", above=0, below=1)


@dataclass(frozen=True, kw_only=True)
class Config(Inherited):
    count: int = setting(3, "How many.", least=1, most=4092)
    seconds: float = setting(1.0, "How long.", above=0, or_else=(-1,))
    size: int = setting(2**20, "How much.", above=0, unit=2**10)
    free: float = setting(0.0, "Anything that is finite.")
    kind: Literal["a", "b"] = setting("a", "Which.")
    scale: Literal["sum", "mean"] | float = setting(
        "sum", "By what.", above=0, most=8, accepts=callable, accepts_text="a function"
    )
    name: str | None = setting(None, "Who.", characters_max=5)
    address: str = setting("x", "Where.", characters_max=9, metavar="HOST:PORT")
    rate: float = setting(1.0, "How fast.", above=0, metavar="Mbit/s")
    text: str = setting("", "Anything.")
    switch: bool = setting(False, "Whether.")
    pair: tuple[float, float] | None = setting(None, "From, to.")
    path: Path | None = setting(None, "Where it is.")
    names: list[str] | None = setting(None, "Who they are.")
    key: str | None = setting(None, "Not to be shown.", is_secret=True)
    other: int = 5

    def __post_init__(self) -> None:
        check_settings(self)


FINE: list[tuple[str, Any]] = [
    *(("count", value) for value in (1, 4092)),
    *(("seconds", value) for value in (1e-9, 7, -1)),
    *(("kind", value) for value in ("a", "b")),
    *(("scale", value) for value in ("mean", 0.5, 8, len)),
    *(("name", value) for value in (None, "Anna")),
    *(("pair", value) for value in (None, (1, 2.0), [1.0, 2.0])),
    ("text", "\n"),
    ("switch", True),
    ("path", Path("x")),
    ("names", ["x"]),
    ("key", 17),
    ("other", "whatever"),
    ("ratio", 0.5),
]

REFUSED: list[tuple[str, Any, tuple[object, ...]]] = [
    *(("count", value, (1, 4092)) for value in (0, 4093)),
    *(("count", value, ("whole number",)) for value in (1.0, "1", None, True)),
    *(("seconds", value, (0, "finite", -1)) for value in (0.0, -2.0, math.inf, math.nan)),
    ("seconds", 10**400, ("1.79769e+308",)),
    *(("free", value, ("finite",)) for value in (math.inf, -math.inf)),
    *(("kind", value, ("a", "b")) for value in ("c", 1)),
    *(("scale", value, ("sum", "mean", "number", 0, 8, "function")) for value in ("x", 0.0, 9.0)),
    *(("name", value, ("printable", 5)) for value in ("", "a\nb", "longer")),
    ("name", 5, ("text",)),
    ("address", "too long for it", ("host:port", 9)),
    *(("switch", value, ("true", "false")) for value in (1, "true")),
    *(("pair", value, ("two numbers",)) for value in ((1,), (1, "x"), 5, (True, 1))),
    ("path", 5, ("path",)),
    ("names", 5, ("list",)),
    ("rate", 0.0, (0, "finite", "Mbit/s")),
    *(("ratio", value, (0, 1)) for value in (0, 1, -1.0)),
]


@pytest.mark.parametrize(("name", "value"), FINE, ids=str)
def test_a_value_within_its_limits_is_taken(name: str, value: Any) -> None:
    assert getattr(Config(**{name: value}), name) == value


@pytest.mark.parametrize(
    ("name", "value", "limits"), REFUSED, ids=[f"{n}={v!r:.20}" for n, v, _ in REFUSED]
)
def test_another_one_is_refused_with_its_name_and_its_limits(
    name: str, value: Any, limits: tuple[object, ...]
) -> None:
    with pytest.raises(UsageError, match=naming(name, repr(value), *limits)):
        Config(**{name: value})


@given(value=st.integers(1, 4092), seconds=st.floats(1e-9, 1e9))
def test_a_text_stands_for_what_it_shows(value: int, seconds: float) -> None:
    settings = declared_settings(Config)

    assert settings["count"].parse(str(value), "COUNT") == value
    assert settings["seconds"].parse(str(seconds), "SECONDS") == seconds
    assert settings["scale"].parse(str(seconds), "SCALE") == seconds


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("kind", "b", "b"),
        ("kind", "c", "c"),  # refused as a value, with what it can be
        ("scale", "mean", "mean"),
        ("name", "5", "5"),
        ("switch", "True", True),
        ("switch", "0", False),
        ("pair", "1e-3,0.5", (1e-3, 0.5)),
    ],
)
def test_a_text_is_read_by_the_type_of_the_setting(name: str, text: str, value: object) -> None:
    assert declared_settings(Config)[name].parse(text, "SOURCE") == value


@pytest.mark.parametrize(
    ("name", "text"), [("count", "1.5"), ("seconds", "soon"), ("switch", "on"), ("pair", "1;2")]
)
def test_a_text_that_stands_for_nothing_is_refused_with_its_source(name: str, text: str) -> None:
    with pytest.raises(UsageError, match=naming("GRADWIRE_X", repr(text))):
        declared_settings(Config)[name].parse(text, "GRADWIRE_X")


def test_settings_are_listed_before_those_that_are_inherited_and_other_fields_are_not() -> None:
    names = list(declared_settings(Config))

    assert (names[0], names[-1], "other" in names) == ("count", "ratio", False)


def test_an_option_counts_in_its_unit() -> None:
    @dataclass
    class Sizes:
        log_bytes_max: int = setting(2**20, "How much.", unit=2**20)

    [each] = declared_settings(Sizes).values()

    assert (each.option, each.default) == ("log_mib_max", 2**20)


def test_a_secret_is_not_shown() -> None:
    assert "hidden" not in repr(Config(key="hidden"))
