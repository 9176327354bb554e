"""`Announcement`: what a master says of itself where workers look it up, as JSON.

::

    {"gradwire": 1, "masters": ["10.0.2.4:40123", "10.0.2.5:40123"], "host": "node4", "term": 1,
     "settings": {"run": "digits", "mode": "averaging(every=16)"}}

Whoever can write there can send workers to another master. Keys protect from that: a master without
the run key gets no further than its first packet. Nothing secret is announced.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Self

from gradwire_protocol import UnreachableError, UsageError
from gradwire_protocol.limits import KIB
from gradwire_protocol.messages.fields import ADDRESS_CHARACTERS_MAX, TERM_MAX
from gradwire_udp.sockets import split_address

FORMAT: Final = 1
"""A later format gets another number, and an older gradwire says that it is too old."""

ANNOUNCEMENT_BYTES_MAX: Final = 16 * KIB
"""16 addresses and all settings take 6 KB. ZooKeeper takes 1 MB, and serves it to every worker."""

MASTERS_MAX: Final = 16
"""Addresses of one name that a worker tries."""

HOST_CHARACTERS_MAX: Final = 255

ANSWER_SECONDS: Final = 5.0
"""For one answer of ZooKeeper or DNS: a server that is gone costs as long."""

PERSONAL: Final = frozenset({"master", "key", "key_file", "rank", "log_level"})
"""Settings of a worker that are never announced, and never taken from there: those that differ from
worker to worker, what leads to a key, and how much a process writes."""


class NotAnnouncedError(UnreachableError):
    """The place answers, and no master is announced there; one may be about to start."""


class AnnouncementError(UsageError):
    """Something that is no announcement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """What a master says of itself."""

    masters: tuple[str, ...]
    """Addresses, ``host:port``: of the master, then of its standby if it has one."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """For workers, by name."""
    host: str = ""
    """Name of its machine."""
    term: int = 0
    """Where there is a standby: the term in which it is in charge."""

    def replaces(self, other: Self) -> bool:
        """Return whether it may take the place of another one whose session has not ended yet.

        It may if a restarted process has the address of the other one, since two processes of a
        machine cannot both listen there; or if of two masters of one run it has the later term.
        """
        if (self.host, self.masters[0]) == (other.host, other.masters[0]):
            return True
        is_pair = len(self.masters) > 1 and bool(set(self.masters) & set(other.masters))
        return is_pair and self.term > other.term

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

        Unknown fields are ignored, and so are settings that are `PERSONAL`.

        Raises
        ------
        AnnouncementError
            If it stands for none.
        """
        found = _parse_json(content)
        masters, settings = found.get("masters"), found.get("settings", {})
        if not isinstance(masters, list) or not 1 <= len(masters) <= MASTERS_MAX:
            raise AnnouncementError(f"masters has to be a list of 1 to {MASTERS_MAX} addresses")
        for master in masters:
            _check_address(master)
        if not isinstance(settings, dict):
            raise AnnouncementError("settings has to be an object")
        host, term = found.get("host", ""), found.get("term", 0)
        if not isinstance(host, str) or len(host) > HOST_CHARACTERS_MAX:
            raise AnnouncementError(f"host has to be text of {HOST_CHARACTERS_MAX} characters")
        if type(term) is not int or not 0 <= term <= TERM_MAX:
            raise AnnouncementError(f"term has to be a whole number from 0 to {TERM_MAX}")
        shared = {name: value for name, value in settings.items() if name not in PERSONAL}
        return cls(masters=tuple(masters), settings=shared, host=host, term=term)


def _parse_json(content: bytes) -> dict[str, Any]:
    if len(content) > ANNOUNCEMENT_BYTES_MAX:
        raise AnnouncementError(
            f"it has {len(content)} bytes; the limit is {ANNOUNCEMENT_BYTES_MAX}"
        )
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise AnnouncementError(f"it is not JSON: {error}") from None
    if not isinstance(found, dict) or "gradwire" not in found:
        raise AnnouncementError("it is no JSON object with a field 'gradwire': no master wrote it")
    if found["gradwire"] != FORMAT:
        raise AnnouncementError(
            f"it has format {found['gradwire']!r}, and this gradwire reads {FORMAT}: install the "
            "version that the master has"
        )
    return found


def _check_address(value: object) -> None:
    if not isinstance(value, str) or not value.isprintable() or len(value) > ADDRESS_CHARACTERS_MAX:
        raise AnnouncementError(
            f"masters: {value!r:.80} has to be an address of at most {ADDRESS_CHARACTERS_MAX} "
            "characters"
        )
    try:
        split_address(value)
    except UsageError as error:
        raise AnnouncementError(f"masters: {error}") from None
