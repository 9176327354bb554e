"""What gradwire run has said to its workers counts more than what their script says."""

from typing import Any

import pytest

from gradwire.settings.launchers import launched
from support.wording import naming

ENVIRON = {
    "GRADWIRE_LAUNCHED": "1",
    "GRADWIRE_MASTER": "127.0.0.1:7",
    "GRADWIRE_KEY_FILE": "/keys/rank-0.key",
}


@pytest.mark.parametrize(
    ("keywords", "kept", "said"),
    [
        ({}, {}, None),
        ({"workers": 2}, {"workers": 2}, None),
        ({"master": None}, {}, None),
        ({"master": "127.0.0.1:7"}, {}, None),
        ({"master": "10.0.2.4:40123", "run": "a"}, {"run": "a"}, ("master=10.0.2.4:40123",)),
        ({"key_file": "gpu1.key"}, {}, ("key_file=gpu1.key",)),
        (
            {"master": "there", "key_file": "gpu1.key"},
            {},
            (
                "master=there",
                "key_file=gpu1.key",
                "GRADWIRE_MASTER=127.0.0.1:7",
                "Unset",
                "GRADWIRE_LAUNCHED",
                "GRADWIRE_KEY_FILE",
            ),
        ),
        ({"master": "there", "key": "K"}, {"master": "there", "key": "K"}, None),
    ],
)
def test_its_master_and_key_count_and_a_line_says_so(
    keywords: dict[str, Any], kept: dict[str, Any], said: tuple[str, ...] | None
) -> None:
    found, line = launched(keywords, ENVIRON)

    assert found == kept
    assert line == (None if said is None else naming(*said))


def test_without_a_launcher_keywords_count() -> None:
    keywords = {"master": "there", "key_file": "gpu1.key"}

    assert launched(keywords, ENVIRON | {"GRADWIRE_LAUNCHED": ""}) == (keywords, None)


def test_a_launcher_without_keys_leaves_those_of_the_script() -> None:
    environ = {"GRADWIRE_LAUNCHED": "1", "GRADWIRE_MASTER": "here"}

    found, line = launched({"master": "there", "key_file": "gpu1.key"}, environ)

    assert found == {"key_file": "gpu1.key"}
    assert line == naming("master=there", "here")
    assert line is not None
    assert "KEY_FILE" not in line


def test_a_launcher_without_a_master_leaves_that_of_the_script() -> None:
    environ = {"GRADWIRE_LAUNCHED": "1", "GRADWIRE_KEY_FILE": "here.key"}

    found, line = launched({"master": "there", "key_file": "gpu1.key"}, environ)

    assert found == {"master": "there"}
    assert line == naming("key_file=gpu1.key", "here.key", "GRADWIRE_LAUNCHED", "GRADWIRE_KEY_FILE")
