"""Settings: where they come from, which one counts, and what is refused."""

import inspect
import json
import math
from dataclasses import fields
from itertools import combinations
from os import PathLike
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import gradwire
from gradwire.errors import GradwireWarning, UsageError
from gradwire.settings.settings import SettingKeywords, Settings, resolve_settings
from gradwire.settings.training import CHOICES, SCALE_MAX, WARM_UP_DENSITY
from gradwire_codecs import DensityBand, FixedThreshold, TargetDensity, WarmUp
from gradwire_protocol.crypto.keys import SECRET_BYTES, RunKey
from gradwire_protocol.settings import declared_settings
from support.wording import naming

FROM_ALL_PLACES: dict[str, tuple[Any, Any, Any]] = {
    # From a file, from the environment, from a keyword.
    "master": ("file:1", "environment:2", "keyword:3"),
    "run": ("file", "environment", "keyword"),
    "mode": ("synchronous", "averaging", "averaging(every=2)"),
    "rank": (1, 2, 3),
    "workers": (1, 2, 3),
    "threshold": (0.5, 0.25, 0.125),
    "target_density": (0.5, 0.25, 0.125),
    "density_band": ((0.1, 0.5), (0.1, 0.25), (0.1, 0.125)),
    "shake_up_steps": (10, 20, 30),
    "feedback": ("shared", "local", "shared"),
    "finish_residual": ("drop", "send", "drop"),
    "momentum": ("keep", "auto", "keep"),
    "scale": ("mean", "sqrt", 0.5),
    "staleness_bound": (1, 2, 3),
    "warm_up_steps": (1, 2, 3),
    "warm_up_workers": (1, 2, 3),
    "share_buffers": (False, True, False),
    "averaged_buffers": (("a.*", "b"), "a.*,b", ("a.*",)),
    "buffer_steps": (1, 2, 3),
    "log_histograms_every": (1, 2, 3),
    "quantum": (0.5, 0.25, 0.125),
    "connect_timeout_seconds": (1.5, 2.5, 3.5),
    "join_timeout_seconds": (1.5, 2.5, 3.5),
    "start_timeout_seconds": (1.5, 2.5, 3.5),
    "finish_timeout_seconds": (1.5, 2.5, 3.5),
    "reconnect_seconds": (1.5, 2.5, 3.5),
    "on_lost": ("finish", "raise", "finish"),
    "idle_timeout_seconds": (1.5, 2.5, 3.5),
    "transport": ("tcp", "udp", "tcp"),
    "key_file": ("file.key", "environment.key", "keyword.key"),
    "log_level": ("debug", "warning", "error"),
}

MASTER = {"GRADWIRE_MASTER": "somewhere"}
OWN = TargetDensity(initial=0.5)
RUN_KEY = RunKey(bytes(range(SECRET_BYTES)))


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "gradwire.toml"


def written(config: Path, table: dict[str, Any]) -> Path:
    """Write settings as a person would."""
    lines = [f"{name} = {json.dumps(value)}" for name, value in table.items()]
    config.write_text("\n".join(["[session]", *lines]))
    return config


def in_environment(value: Any) -> str:
    """Return a value as a variable has it."""
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


# Where they come from.


def test_every_setting_is_tested_here_and_is_a_keyword_of_join() -> None:
    names = {field.name for field in fields(Settings)}

    assert set(FROM_ALL_PLACES) == names - {"key"}, "FROM_ALL_PLACES has three values of each"
    assert set(inspect.signature(gradwire.join).parameters) == names | {
        "target",
        "optimizer",
        "config",
    }


def test_what_type_checkers_know_of_join_is_what_settings_are() -> None:
    keywords = get_type_hints(SettingKeywords)
    settings = get_type_hints(Settings)

    assert list(keywords) == list(declared_settings(Settings))
    for name, keyword in keywords.items():
        # A keyword may also be None, which means that it was not passed, and a key file any path.
        extra = str | PathLike[str] | None if name == "key_file" else None
        assert keyword == settings[name] | extra, name


@pytest.mark.parametrize("name", FROM_ALL_PLACES)
def test_a_keyword_comes_before_the_environment_and_that_before_the_file(
    name: str, config: Path
) -> None:
    in_file, in_variable, as_keyword = FROM_ALL_PLACES[name]
    environ = MASTER | {"GRADWIRE_CONFIG": str(written(config, {name: in_file}))}
    if name == "master":
        del environ["GRADWIRE_MASTER"]
    both = environ | {f"GRADWIRE_{name.upper()}": in_environment(in_variable)}

    assert getattr(resolve_settings({}, environ), name) == in_file
    assert getattr(resolve_settings({}, both), name) == in_variable
    assert getattr(resolve_settings({name: as_keyword}, both), name) == as_keyword


def test_torchrun_is_honoured_where_nothing_else_is_said(config: Path) -> None:
    torchrun = {"MASTER_ADDR": "10.0.0.1", "RANK": "3", "WORLD_SIZE": "4", "MASTER_PORT": "29500"}

    assert resolve_settings({}, torchrun) == Settings(master="10.0.0.1", rank=3, workers=4)
    assert resolve_settings({"workers": 2}, torchrun).workers == 2
    assert resolve_settings({}, torchrun | MASTER).master == "somewhere"
    assert resolve_settings({}, torchrun, written(config, {"rank": 1})).rank == 1


def test_srun_is_honoured_where_no_nearer_launcher_has_started_this_process() -> None:
    srun = MASTER | {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_NTASKS": "8"}
    torchrun = {"RANK": "5", "WORLD_SIZE": "16"}

    assert resolve_settings({}, srun) == Settings(master="somewhere", rank=3, workers=4)
    assert resolve_settings({}, srun | torchrun) == resolve_settings({}, MASTER | torchrun)
    assert resolve_settings({}, srun | {"LOCAL_WORLD_SIZE": "2"}) == resolve_settings({}, MASTER)
    assert resolve_settings({}, MASTER | {"SLURM_NTASKS": "8"}).workers is None


# What is refused.


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "No such file"),
        (b"[session\n", "Expected ']'"),
        (b"session = 3\n", "'session'"),
        (b"a = " + 2_000 * b"[", "recursion"),
        (b"[session]\nrun = '\xff'", "can't decode"),
    ],
    ids=["missing", "no TOML", "no table", "too deep", "no text"],
)
def test_a_file_that_cannot_be_used_is_named(
    config: Path, content: bytes | None, says: str
) -> None:
    if content is not None:
        config.write_bytes(content)

    with pytest.raises(UsageError, match=naming(repr(str(config)), says)):
        resolve_settings({}, MASTER, config)


def test_unknown_settings_are_named(config: Path) -> None:
    with pytest.raises(UsageError, match=naming("nonsense", "treshold", "threshold?")):
        resolve_settings({}, MASTER, written(config, {"treshold": 1.0, "nonsense": 2}))
    with pytest.raises(UsageError, match=naming("treshold", "threshold?")):
        resolve_settings({"treshold": 0.5}, MASTER)


def test_a_misspelt_variable_is_warned_of_and_the_rest_counts() -> None:
    environ = MASTER | {"GRADWIRE_TARGT_DENSITY": "0.1", "GRADWIRE_RANK": "3"}

    with pytest.warns(
        GradwireWarning, match=naming("GRADWIRE_TARGT_DENSITY", "GRADWIRE_TARGET_DENSITY?")
    ):
        assert resolve_settings({}, environ).rank == 3


def test_a_misspelt_table_is_warned_of(config: Path) -> None:
    config.write_text("[sesion]\nrank = 3\n")

    with pytest.warns(GradwireWarning, match=naming(config, "sesion", "session?")):
        assert resolve_settings({}, MASTER, config).rank is None


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        ("GRADWIRE_RANK", "first"),
        ("GRADWIRE_WORKERS", "2.5"),
        ("GRADWIRE_THRESHOLD", "small"),
        ("GRADWIRE_QUANTUM", "2^-24"),
        ("GRADWIRE_IDLE_TIMEOUT_SECONDS", "30s"),
        ("RANK", "x"),
        ("WORLD_SIZE", "x"),
        ("GRADWIRE_SHARE_BUFFERS", "on and off"),
        ("GRADWIRE_DENSITY_BAND", "1e-4;1e-2"),
    ],
)
def test_a_variable_that_says_nothing_is_named(variable: str, text: str) -> None:
    with pytest.raises(UsageError, match=naming(variable, repr(text))):
        resolve_settings({}, MASTER | {variable: text})


DURATIONS = [field.name for field in fields(Settings) if field.name.endswith("_seconds")]
REFUSED: list[tuple[str, Any, tuple[object, ...]]] = [
    # A setting, a value that it cannot have, and what says which values it can have.
    *(("feedback", value, ("local", "shared")) for value in ("all", 0.5, 1.0, True)),
    ("finish_residual", "keep", ("send", "drop")),
    ("momentum", "lower", ("auto", "keep")),
    ("scale", "half", ("sum", "mean", "sqrt", "agreement", "staleness", "number")),
    *(("scale", value, (0, f"{SCALE_MAX:g}")) for value in (0.0, SCALE_MAX * 2, math.nan)),
    ("transport", "sctp", ("auto", "udp", "tcp")),
    ("run", "a\nb", ("printable", 256)),
    ("run", "r" * 257, ("printable", 256)),
    *(("rank", value, (0, 3999)) for value in (-1, 4000)),
    *(("workers", value, (1, 4000)) for value in (0, 4001)),
    ("buffer_steps", -1, (0,)),
    ("log_histograms_every", 0, (1,)),
    *(("quantum", value, ("2^-40", 1)) for value in (0.3, 2.0, 2.0**-41, 0.0, math.nan)),
    *(("threshold", value, (0, "finite")) for value in (0.0, -1.0, math.nan)),
    ("threshold", 10**400, ("1.79769e+308",)),
    *(("target_density", value, (0, 1)) for value in (0.0, 1.0)),
    *(
        ("density_band", value, (0, 1, "smaller"))
        for value in ((0.0, 0.1), (0.1, 1.0), (0.2, 0.1), (math.nan, 0.1))
    ),
    *(("shake_up_steps", value, (2, 0)) for value in (1, -2)),
    ("warm_up_steps", -1, (0,)),
    ("warm_up_workers", 0, (1,)),
    *(("staleness_bound", value, ("auto", "off", 0)) for value in (-1, 1.5, "never")),
    ("idle_timeout_seconds", 3_601.0, (0.001, 3600)),
    *(
        (name, value, (0, "finite"))
        for name in DURATIONS
        for value in (0.0, -1.0, math.inf, math.nan)
        if (name, value) != ("start_timeout_seconds", 0.0)  # where 0 means not to wait
    ),
]


@pytest.mark.parametrize(
    ("name", "value", "limits"), REFUSED, ids=[f"{n}={value!r:.20}" for n, value, _ in REFUSED]
)
def test_a_value_that_cannot_work_is_named_with_its_limits(
    name: str, value: Any, limits: tuple[object, ...]
) -> None:
    settings: dict[str, Any] = {"master": "somewhere", name: value}

    with pytest.raises(UsageError, match=naming(name, repr(value), *limits)):
        Settings(**settings)


# What they mean.


@pytest.mark.parametrize(
    ("settings", "policy"),
    [
        ({}, WarmUp(TargetDensity(), WARM_UP_DENSITY, 200)),
        ({"warm_up_steps": 0}, TargetDensity()),
        ({"warm_up_steps": 50}, WarmUp(TargetDensity(), WARM_UP_DENSITY, 50)),
        ({"target_density": 0.125}, TargetDensity(0.125)),
        ({"density_band": [1e-4, 1e-2]}, DensityBand(1e-4, 1e-2)),
        ({"threshold": 0.5}, FixedThreshold(0.5)),
        ({"threshold": 1}, FixedThreshold(1.0)),
        ({"threshold": OWN}, OWN),
    ],
)
def test_each_policy_is_chosen_by_a_setting(settings: dict[str, Any], policy: Any) -> None:
    assert Settings(master="somewhere", **settings).make_policy() == policy


@pytest.mark.parametrize(("one", "other"), list(combinations(CHOICES, 2)))
def test_two_settings_that_choose_the_threshold_are_both_named(one: str, other: str) -> None:
    with pytest.raises(UsageError, match=naming(one, other)):
        resolve_settings(
            {one: FROM_ALL_PLACES[one][0]},
            MASTER | {f"GRADWIRE_{other.upper()}": in_environment(FROM_ALL_PLACES[other][0])},
        )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("master", 5),
        ("run", 5),
        ("rank", "first"),
        ("rank", 1.5),
        ("workers", "2"),
        ("threshold", "small"),
        ("threshold", True),
        ("target_density", "x"),
        ("density_band", 0.1),
        ("density_band", [0.1]),
        ("density_band", [0.1, True]),
        ("share_buffers", 1),
        ("shake_up_steps", 1.5),
        ("feedback", 3),
        ("quantum", "x"),
        ("connect_timeout_seconds", "5"),
        ("transport", []),
    ],
    ids=repr,
)
def test_a_value_of_another_type_is_named(config: Path, name: str, value: object) -> None:
    with pytest.raises(UsageError, match=naming(name, repr(value))):
        resolve_settings({}, {} if name == "master" else MASTER, written(config, {name: value}))


# Keys.


@pytest.mark.parametrize(
    "key", [RUN_KEY, RUN_KEY.format(), RUN_KEY.worker_key("gpu7"), RUN_KEY.worker_key("g").format()]
)
def test_a_key_is_a_keyword_and_shown_nowhere(key: Any) -> None:
    text = key if isinstance(key, str) else key.format()

    settings = resolve_settings({"key": key}, MASTER)

    assert settings.key is key
    assert "key=" not in repr(settings)
    assert text.rpartition(":")[2] not in repr(settings)


@pytest.mark.parametrize(
    ("environ", "line"),
    [({"GRADWIRE_KEY": RUN_KEY.format()}, ""), ({}, "key = 'gradwire-run-key'")],
)
def test_a_key_where_too_many_can_read_it_is_refused_and_not_repeated(
    config: Path, environ: dict[str, str], line: str
) -> None:
    config.write_text(f"[session]\n{line}\n")

    with pytest.raises(UsageError, match=naming("key_file", "GRADWIRE_KEY_FILE")) as refused:
        resolve_settings({}, MASTER | environ, config)

    assert "gradwire-run-key" not in str(refused.value)


@pytest.mark.parametrize("key", [RUN_KEY.format()[:-3], "gradwire-run-key:secret", b"secret", 5])
def test_what_is_no_key_is_refused_and_not_repeated(key: Any) -> None:
    with pytest.raises(UsageError) as refused:
        Settings(master="somewhere", key=key)

    assert "secret" not in str(refused.value)
    assert RUN_KEY.format()[:-3].rpartition(":")[2] not in str(refused.value)


def test_two_keys_at_once_are_refused() -> None:
    with pytest.raises(UsageError, match=naming("key", "key_file", "my.key")):
        resolve_settings({"key": RUN_KEY, "key_file": "my.key"}, MASTER)


def test_without_a_key_the_credential_of_systemd_counts(tmp_path: Path) -> None:
    environ = MASTER | {"CREDENTIALS_DIRECTORY": str(tmp_path)}
    before = resolve_settings({}, environ).key_file
    (tmp_path / "worker.key").touch()

    assert before == ""
    assert resolve_settings({}, environ).key_file == str(tmp_path / "worker.key")
    assert resolve_settings({}, environ | {"GRADWIRE_KEY_FILE": "mine"}).key_file == "mine"


# What a master announces.


def test_a_setting_that_was_given_counts_more_than_what_is_announced() -> None:
    given: dict[str, Any] = {"master": "zk://h/p", "run": "ours", "threshold": 1e-3}
    announced = {"run": "theirs", "mode": "averaging(every=3)", "workers": 4}

    found = Settings(**given).with_announced(announced, given, "zk://h/p")

    assert (found.run, found.threshold, found.workers) == ("ours", 1e-3, 4)
    assert str(found.run_mode) == naming("averaging", "every=3")


@pytest.mark.parametrize(
    ("announced", "named"),
    [
        ({"weather": "fine"}, naming("zk://h/p", "weather")),
        ({"workers": 0}, naming("zk://h/p", "workers=0")),
        ({"workers": [1]}, naming("zk://h/p", "workers")),
        ({"mode": 3}, naming("zk://h/p", "mode")),
        ({"threshold": {}}, naming("zk://h/p", "threshold")),
    ],
)
def test_a_setting_that_cannot_work_is_named_with_where_it_is_announced(
    announced: dict[str, Any], named: str
) -> None:
    given: dict[str, Any] = {"master": "zk://h/p"}

    with pytest.raises(UsageError, match=named):
        Settings(**given).with_announced(announced, given, "zk://h/p")
