"""Endpoints with keys, and INITs that they did not write themselves."""

from random import Random
from typing import Final

from gradwire_protocol import Credentials, Endpoint, Keyring, RunKey, Suite, WorkerKey
from gradwire_protocol.crypto.keys import SECRET_BYTES
from gradwire_protocol.crypto.suites import NOISE_NAMES
from support.endpoints import PLAIN

RUN_KEY: Final = RunKey(b"r" * SECRET_BYTES)
OTHER_RUN_KEY: Final = RunKey(b"o" * SECRET_BYTES)
WORKER_KEY: Final = RUN_KEY.worker_key("worker")
SEALED_SUITES: Final = (*NOISE_NAMES,)
INSTANCE: Final = "master:9740"


class TimeOfDay:
    """A time of day that moves on by itself whenever somebody looks, as real ones do."""

    def __init__(self, ns: int = 10**18) -> None:
        self.ns = ns

    def __call__(self) -> int:
        """Return the time in nanoseconds."""
        self.ns += 1
        return self.ns


def dialling_with(
    key: WorkerKey | None = WORKER_KEY,
    *,
    suite: Suite = Suite.AES,
    time: TimeOfDay | None = None,
    seed: int = 2,
) -> Endpoint:
    """Return an endpoint that dials out with a key; without one, in suite 0."""
    credentials = Credentials(key=key, suite=suite, unix_time_ns=time or TimeOfDay())
    return Endpoint(
        PLAIN,
        random_bytes=Random(seed).randbytes,
        credentials=credentials if key else None,
    )


def listening_with(
    *run_keys: RunKey,
    denied: tuple[str, ...] = (),
    instance: str = INSTANCE,
    connections_max: int = 4,
    seed: int = 1,
) -> Endpoint:
    """Return an endpoint that lets in who has a key of these runs."""
    credentials = Credentials(
        keyring=Keyring(run_keys, denied), unix_time_ns=TimeOfDay(), instance=instance
    )
    return Endpoint(
        PLAIN,
        random_bytes=Random(seed).randbytes,
        connections_max=connections_max,
        credentials=credentials,
    )
