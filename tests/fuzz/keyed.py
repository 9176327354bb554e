"""Endpoints with keys for targets; whatever is random in them is the same in every execution."""

from random import Random
from typing import Final

from gradwire_protocol import Credentials, Endpoint
from gradwire_protocol.crypto.keys import SECRET_BYTES, Keyring, RunKey
from gradwire_protocol.crypto.suites import Suite
from support.endpoints import PLAIN

RUN_KEY: Final = RunKey(b"fuzz" * (SECRET_BYTES // 4))
WORKER_KEY: Final = RUN_KEY.worker_key("worker")
DENIED_KEY: Final = RUN_KEY.worker_key("denied")

NOW: Final = 1000.0
UNIX_TIME_NS: Final = 10**18


def responding(*, keyed: bool) -> Endpoint:
    """Return an endpoint that accepts connections, of those who have a key or of everyone."""
    credentials = Credentials(
        keyring=Keyring([RUN_KEY], [DENIED_KEY.name]),
        unix_time_ns=lambda: UNIX_TIME_NS,
        instance="fuzz",
    )
    return Endpoint(
        PLAIN,
        random_bytes=Random(1).randbytes,
        connections_max=2,
        credentials=credentials if keyed else None,
    )


def dialling(*, keyed: bool, suite: Suite = Suite.AES) -> Endpoint:
    """Return an endpoint that accepts none."""
    credentials = Credentials(key=WORKER_KEY, suite=suite, unix_time_ns=lambda: UNIX_TIME_NS)
    return Endpoint(
        PLAIN, random_bytes=Random(2).randbytes, credentials=credentials if keyed else None
    )
