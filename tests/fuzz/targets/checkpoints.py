"""Checkpoints: the input is a msgpack map that `Session.load_state_dict` is given.

msgpack makes every plain value that a loaded file can hold, its extension types make arrays. What
is refused has changed nothing; what is accepted is what `Session.state_dict` then returns, and goes
on working.
"""

from collections.abc import Iterable, Mapping
from time import monotonic
from typing import Any, Final

import msgpack
import numpy as np

from gradwire.errors import UsageError
from gradwire.participant.participant import Participant
from gradwire.replica.checkpoint_state import STATE_VERSION
from gradwire.settings.settings import Settings
from gradwire.target.parameters import NumpyParameters
from gradwire.worker.membership import Membership
from gradwire.worker.worker import Worker
from gradwire_codecs import LocalFeedback, Observation, Replica
from gradwire_protocol.messages.admission import CODEC_VERSION, Join
from gradwire_protocol.messages.fields import WORKER_ID_BYTES
from gradwire_protocol.messages.layout import Layout, Tensor
from support.peer import welcome

BYTES_MAX: Final = 512
ELEMENTS: Final = 16
LAYOUT: Final = Layout((Tensor("array", (ELEMENTS,)),))

DTYPES: Final = "<f4", "<f8", "<i4", "<f2", "?", ">f4"
"""By the code of the extension type."""


def check(data: bytes) -> None:
    """Load a checkpoint."""
    try:
        state = msgpack.unpackb(data, ext_hook=_array, strict_map_key=False)
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException):
        return  # not for us: a checkpoint comes out of torch.load or numpy.load
    if not isinstance(state, dict):
        return
    participant = _participant()
    before = participant.save()
    try:
        participant.state.restore(state)
    except UsageError:
        assert _same(participant.save(), before), "refused, and yet something has changed"
        return
    after = participant.save()
    assert np.array_equal(after["residual"], np.asarray(state["residual"]))
    participant.state.restore(after)
    assert _same(participant.save(), after)
    policy = Settings(master="nowhere").make_policy()
    policy.restore(after["policy"])
    policy.start(0.5)
    policy.observe(Observation(density=0.5, threshold=0.25, size_bytes=40, seconds=0.1))
    assert policy.threshold is not None
    assert 0 < policy.threshold < float("inf")


def _participant() -> Participant:
    membership = Membership(ELEMENTS)
    membership.on_welcome(welcome(layout=LAYOUT, sequence=5, founder=True))
    request = Join(None, bytes(WORKER_ID_BYTES), "worker", None, CODEC_VERSION, -24, LAYOUT)
    vector = np.zeros(ELEMENTS, np.float32)
    return Participant(
        settings=Settings(master="nowhere"),
        parameters=NumpyParameters(vector),
        feedback=LocalFeedback(vector, Replica.zeros(ELEMENTS)),
        membership=membership,
        worker=Worker(request, membership, "nowhere", random=lambda: 0.5),
        clock=monotonic,
    )


def _array(code: int, data: bytes) -> object:
    dtype = np.dtype(DTYPES[code % len(DTYPES)])
    return np.frombuffer(data[: len(data) // dtype.itemsize * dtype.itemsize], dtype)


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    plain = one.keys() - {"residual"}
    return np.array_equal(one["residual"], other["residual"]) and all(
        one[name] == other[name] for name in plain
    )


def seeds() -> Iterable[bytes]:
    """Return a checkpoint of each policy, and some that do not fit."""
    residual = np.linspace(-1, 1, ELEMENTS, dtype="<f4")
    adaptive = {"threshold": 0.125, "updates": 7}
    fixed = {"threshold": 0.125}
    for policy in (adaptive, fixed, {"threshold": None, "updates": 0}, {"updates": 1e300}):
        yield _packed(residual.tobytes(), policy)
    yield _packed(residual.astype("<f8").tobytes(), fixed, dtype=1)
    yield _packed(residual[1:].tobytes(), fixed)
    yield _packed(np.full(ELEMENTS, np.nan, "<f4").tobytes(), fixed)


def _packed(residual: bytes, policy: object, dtype: int = 0) -> bytes:
    state = {
        "version": STATE_VERSION,
        "run": "run",
        "residual": msgpack.ExtType(dtype, residual),
        "policy": policy,
        "versions": {0: 5},
    }
    packed: bytes = msgpack.packb(state)
    return packed
