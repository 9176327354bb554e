"""The codec for vectors in the memory of a device, such as a GPU, in torch's own operations.

The threshold pass and what changes the vectors run on the device. Hits, the elements to send,
travel to the host, where `gradwire_codecs.format` encodes them; it decodes peers' updates there.
"""

from gradwire_codecs.device.feedback import (
    DeviceFeedback,
    DeviceLocalFeedback,
    DeviceSharedFeedback,
)

__all__ = ["DeviceFeedback", "DeviceLocalFeedback", "DeviceSharedFeedback"]
