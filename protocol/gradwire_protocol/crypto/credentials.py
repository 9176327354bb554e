"""`Credentials`: the keys that prove an endpoint's identity and check that of its peers."""

from collections.abc import Callable
from dataclasses import dataclass

from gradwire_protocol.crypto.keys import Keyring, WorkerKey
from gradwire_protocol.crypto.suites import Suite


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Keys of one endpoint. An endpoint without any speaks suite 0 and no other."""

    unix_time_ns: Callable[[], int]
    """The time of day, `time.time_ns`. Every INIT carries it; an INIT that is not newer than the
    last one of its key is a replay."""

    key: WorkerKey | None = None
    """Key for dialling out; without one the endpoint cannot dial."""

    keyring: Keyring | None = None
    """Keys of the peers that may connect."""

    suite: Suite = Suite.AES
    """Suite for dialling out. Incoming connections may use any sealed suite."""

    instance: str = ""
    """Host and address of a master. It tells masters with the same run key apart and stays the same
    over restarts. Empty where no session outlives the process, as over TCP."""
