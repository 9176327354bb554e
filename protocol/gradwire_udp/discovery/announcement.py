"""`Announcement`: what a master says of itself where workers look it up, as JSON.

::

    {"gradwire": 1, "master": "10.0.2.4:40123", "others": ["10.0.2.5:40123"],
     "settings": {"run": "digits", "mode": "averaging(every=16)"}, "keys": ["1f09c2"],
     "version": "0.1.0", "host": "node4", "instance": "8d0c…", "term": 1,
     "lasts_seconds": 10.0, "at": 1795000000.0}

Everyone who can write there can announce another master. Keys protect from that: a master without
the run key gets no further than its first packet. Nothing secret is announced, of a key only its
fingerprint.
"""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from math import isfinite
from typing import Any, Final, Self

from gradwire_protocol import UsageError
from gradwire_protocol.limits import KIB
from gradwire_protocol.messages.admission import split_masters
from gradwire_protocol.messages.fields import ADDRESS_CHARACTERS_MAX, MASTERS_CHARACTERS_MAX
from gradwire_udp.sockets import split_address

FORMAT: Final = 1
"""A later format gets another number, and an older gradwire says that it is too old."""

ANNOUNCEMENT_BYTES_MAX: Final = 64 * KIB
"""256 addresses of 30 characters take 8 KB, and all settings less than 2 KB. ZooKeeper takes 1 MB,
and serves it to every worker."""

OTHERS_MAX: Final = 3
"""Addresses besides the first one: a worker tries four."""

TEXT_CHARACTERS_MAX: Final = 300
LASTS_SECONDS_MAX: Final = 300.0
KEYS_MAX: Final = 8
SETTINGS_MAX: Final = 200

PERSONAL: Final = frozenset({"master", "key", "key_file", "rank", "log_level", "quiet"})
"""Settings of a worker that are never announced, and never taken from there: those that differ from
worker to worker, what leads to a key, and how much a process writes."""


class AnnouncementError(UsageError):
    """Something that is no announcement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """What a master says of itself."""

    master: str
    """Its address as a worker's setting `master` has it: several masters where these share the
    parameters."""
    others: tuple[str, ...] = ()
    """Where else the same master may be, as its standby is."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings for workers, by name."""
    keys: tuple[str, ...] | None = None
    """Fingerprints of its run keys; none where it has no key, and None where that is not known."""
    version: str = ""
    host: str = ""
    instance: str = ""
    """A random name of this process."""
    term: int = 0
    """Where there is a standby: the term in which it is in charge."""
    lasts_seconds: float = 0.0
    """How long the announcement may outlast its master."""
    at: float = field(default=0.0, compare=False)
    """When it was written, in seconds since 1970, by the clock of the master's machine."""

    def is_of_the_same(self, other: Self) -> bool:
        """Return whether another announcement is of this master, or of one that ran in its place.

        Two processes of one machine cannot both listen at one address.
        """
        return self.instance == other.instance or (
            bool(self.host) and (self.host, self.master) == (other.host, other.master)
        )

    def replaces(self, other: Self) -> bool:
        """Return whether this may take the place of an announcement that still stands.

        It may where the other master is gone, or where a later term has made it a former one.
        """
        ours, theirs = {self.master, *self.others}, {other.master, *other.others}
        return self.is_of_the_same(other) or (
            bool(self.others and other.others and ours & theirs) and self.term > other.term
        )

    def written_at(self, seconds: float) -> Self:
        """Return the same with another time."""
        return replace(self, at=seconds)

    def pack(self) -> bytes:
        """Return it as JSON.

        Raises
        ------
        UsageError
            If it is too large, or a setting has a value that JSON has no words for.
        """
        fields = {"gradwire": FORMAT, **asdict(self), "settings": dict(self.settings)}
        try:
            content = json.dumps(fields, allow_nan=False).encode()
        except (TypeError, ValueError) as error:
            raise UsageError(f"the settings to announce: {error}") from None
        if len(content) > ANNOUNCEMENT_BYTES_MAX:
            raise UsageError(
                f"the announcement takes {len(content)} bytes; the limit is "
                f"{ANNOUNCEMENT_BYTES_MAX}: leave settings out of [session]"
            )
        return content

    @classmethod
    def parse(cls, content: bytes) -> Self:
        """Return the announcement that a text stands for.

        Fields that are not known are passed over.

        Raises
        ------
        AnnouncementError
            If it stands for none.
        """
        found = _parse_json(content)
        _check_format(found)
        return cls(
            master=_address(found, "master", MASTERS_CHARACTERS_MAX, split_masters),
            others=_addresses(found),
            settings=_settings(found),
            keys=_keys(found),
            version=_text(found, "version"),
            host=_text(found, "host"),
            instance=_text(found, "instance"),
            term=int(_number(found, "term", 2.0**53)),
            lasts_seconds=_number(found, "lasts_seconds", LASTS_SECONDS_MAX),
            at=_number(found, "at", 2.0**53),
        )

    def age_text(self, now: Callable[[], float] = time.time) -> str:
        """Return who wrote it and when, in words; clocks may differ."""
        by = f" by gradwire {self.version}" if self.version else ""
        host = f" on {self.host}" if self.host else ""
        if not self.at:
            return f"announced{by}{host}"
        return f"announced {max(now() - self.at, 0.0):.0f} s ago{by}{host}"


def _parse_json(content: bytes) -> dict[str, Any]:
    if len(content) > ANNOUNCEMENT_BYTES_MAX:
        raise AnnouncementError(
            f"it has {len(content)} bytes; the limit is {ANNOUNCEMENT_BYTES_MAX}"
        )
    try:
        found = json.loads(content, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise AnnouncementError(f"it is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise AnnouncementError(
            f"it is JSON of type {type(found).__name__}, and has to be an object"
        )
    return found


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _check_format(found: Mapping[str, Any]) -> None:
    number = found.get("gradwire")
    if number is None:
        raise AnnouncementError("it has no field 'gradwire': no master wrote it")
    if number != FORMAT or isinstance(number, bool):
        raise AnnouncementError(
            f"it has format {number!r}, and this gradwire reads {FORMAT}: install the version that "
            "the master has"
        )


def _address(found: Mapping[str, Any], name: str, most: int, check: Callable[[str], object]) -> str:
    value = found.get(name)
    if not isinstance(value, str) or not value.isprintable() or not 1 <= len(value) <= most:
        raise AnnouncementError(f"{name} has to be an address of 1 to {most} characters")
    try:
        check(value)
        for each in split_masters(value):
            split_address(each.address)
    except UsageError as error:
        raise AnnouncementError(f"{name}: {error}") from None
    return value


def _addresses(found: Mapping[str, Any]) -> tuple[str, ...]:
    values = found.get("others", [])
    if not isinstance(values, list) or len(values) > OTHERS_MAX:
        raise AnnouncementError(f"others has to be a list of {OTHERS_MAX} addresses at most")
    return tuple(
        _address({"others": each}, "others", ADDRESS_CHARACTERS_MAX, split_address)
        for each in values
    )


def _settings(found: Mapping[str, Any]) -> dict[str, Any]:
    values = found.get("settings", {})
    if not isinstance(values, dict) or len(values) > SETTINGS_MAX:
        raise AnnouncementError(f"settings has to be an object of {SETTINGS_MAX} names at most")
    for name in values:
        _text({"the name of a setting": name}, "the name of a setting")
    return values


def _keys(found: Mapping[str, Any]) -> tuple[str, ...] | None:
    values = found.get("keys")
    if values is None:
        return None
    if not isinstance(values, list) or len(values) > KEYS_MAX:
        raise AnnouncementError(f"keys has to be a list of {KEYS_MAX} fingerprints at most")
    return tuple(_text({"keys": each}, "keys") for each in values)


def _text(found: Mapping[str, Any], name: str) -> str:
    value = found.get(name, "")
    if (
        not isinstance(value, str)
        or len(value) > TEXT_CHARACTERS_MAX
        or not (value.isprintable() or not value)
    ):
        raise AnnouncementError(
            f"{name} has to be a printable text of {TEXT_CHARACTERS_MAX} characters at most"
        )
    return value


def _number(found: Mapping[str, Any], name: str, most: float) -> float:
    value = found.get(name, 0)
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or not 0 <= value <= most
        or not isfinite(value)
    ):
        raise AnnouncementError(f"{name} has to be a number from 0 to {most:g}")
    return value
