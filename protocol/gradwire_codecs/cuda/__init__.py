"""The codec for vectors in the memory of a GPU; it needs torch and Triton.

The threshold pass, the codes and what applies an update run on the device, and give the bytes and
the bits that `gradwire_codecs.feedback.feedback` gives. Only encoded updates cross between the
memories.
"""

from gradwire_codecs.cuda.feedback import (
    DeviceLocalFeedback,
    DevicePartialFeedback,
    DeviceSharedFeedback,
)
from gradwire_codecs.cuda.warm_up import warm_up

__all__ = ["DeviceLocalFeedback", "DevicePartialFeedback", "DeviceSharedFeedback", "warm_up"]
