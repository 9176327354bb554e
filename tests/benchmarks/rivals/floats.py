"""What gradient compression sends that sends numbers: top-k, and 8-bit quantization."""

from typing import Final

TOP_K_HIT_BYTES: Final = 8
"""What an element takes: an int32 and a float32. (torch's own sparse tensors take 12.)"""

BUCKET: Final = 512
"""Elements that have one scale; of Alistarh et al.'s experiments."""


def qsgd_bytes(elements: int) -> int:
    """Return the bytes of a byte per element and a float32 scale per bucket.

    QSGD [1]_ with 127 levels, without its entropy coding, which saves little at 8 bits.

    References
    ----------
    .. [1] D. Alistarh et al., "QSGD: Communication-efficient SGD via gradient quantization and
       encoding", NeurIPS 2017.
    """
    return elements + 4 * -(-elements // BUCKET)
