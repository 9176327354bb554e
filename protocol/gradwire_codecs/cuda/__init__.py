"""The codec for vectors in the memory of a GPU; it needs torch and Triton.

The threshold pass, encoding and applying updates run on the device, with the same results, to the
bit, as on the CPU. Only encoded updates are copied between device and host.
"""

from gradwire_codecs.cuda.feedback import DeviceLocalFeedback, DeviceSharedFeedback
from gradwire_codecs.cuda.warm_up import warm_up

__all__ = ["DeviceLocalFeedback", "DeviceSharedFeedback", "warm_up"]
