"""gradwire's codec: from parameters to encoded updates and back, with no network at all.

>>> import numpy as np
>>> from gradwire_codecs import Replica, decode, encode
>>> parameters = np.array([0.5, -0.03, 0.0, 1.0], np.float32)
>>> replica = Replica.zeros(4)
>>> [encoded] = encode(parameters, replica, threshold=0.25)
>>> update = decode(encoded, elements=4)
>>> update.index, update.count
(array([0, 3], dtype=uint32), array([2, 4], dtype=int32))

An update's way through the modules: `kernels.threshold` finds the elements to send; `format.sparse`
(Rice codes, of `format.bits`) or `format.dense` encodes them, and `format.update` writes a `header`
before them. `format.hits` decodes an update, `format.reading` adds it to vectors.

`replica` is the sum of all updates, as integers; its digests show whether two replicas are equal,
and `format.block_packing` shrinks its blocks for the network. `feedback` holds what is not sent
yet: `host_feedback` for arrays, `device` for tensors on a GPU. `residuals` measures it. `policies`
choose the threshold.
"""

from gradwire_codecs.errors import (
    CodecError,
    MalformedUpdateError,
    NonFiniteError,
    OutOfRangeError,
)
from gradwire_codecs.feedback.feedback import Feedback, ResidualStatistics, multiple_of
from gradwire_codecs.feedback.host_feedback import LocalFeedback, SharedFeedback, encode
from gradwire_codecs.format.block_packing import pack_block, unpack_block
from gradwire_codecs.format.reading import encoded_hits
from gradwire_codecs.format.update import NOTHING, Update, decode, encoded_bytes_max
from gradwire_codecs.policies.density import DensityBand, TargetDensity
from gradwire_codecs.policies.policy import FixedThreshold, Observation, ThresholdPolicy
from gradwire_codecs.policies.warm_up import WarmUp
from gradwire_codecs.replica.digests import BlockDigests, digest_of
from gradwire_codecs.replica.replica import (
    Replica,
    check_finite,
    check_headroom,
    largest_magnitude,
    quantum_exponent_for,
)
from gradwire_codecs.warm_up import warm_up

__all__ = [
    "NOTHING",
    "BlockDigests",
    "CodecError",
    "DensityBand",
    "Feedback",
    "FixedThreshold",
    "LocalFeedback",
    "MalformedUpdateError",
    "NonFiniteError",
    "Observation",
    "OutOfRangeError",
    "Replica",
    "ResidualStatistics",
    "SharedFeedback",
    "TargetDensity",
    "ThresholdPolicy",
    "Update",
    "WarmUp",
    "check_finite",
    "check_headroom",
    "decode",
    "digest_of",
    "encode",
    "encoded_bytes_max",
    "encoded_hits",
    "largest_magnitude",
    "multiple_of",
    "pack_block",
    "quantum_exponent_for",
    "unpack_block",
    "warm_up",
]
