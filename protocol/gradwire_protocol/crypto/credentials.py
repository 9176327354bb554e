"""`Credentials`: what an endpoint proves itself with, and whom it believes."""

from collections.abc import Callable
from dataclasses import dataclass

from gradwire_protocol.crypto.keys import Keyring, WorkerKey
from gradwire_protocol.crypto.suites import Suite


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Keys of one endpoint; an endpoint without any speaks suite 0, and only that."""

    unix_time_ns: Callable[[], int]
    """The time of day, `time.time_ns`: INITs carry it, and one that is not newer than the last one
    of its key is a replay."""

    key: WorkerKey | None = None
    """What it dials out with; without one, it does not."""

    keyring: Keyring | None = None
    """Whom it lets in."""

    suite: Suite = Suite.AES
    """What it dials out with; it lets in all sealed ones."""

    instance: str = ""
    """Tells a master from others with the same run key, and stays the same over its restarts: host
    and address. Empty where no session outlives the process, as over TCP."""
