"""Round-trip time, estimated by RFC 9002, section 5."""

from gradwire_protocol.limits import GRANULARITY_SECONDS, INITIAL_RTT_SECONDS


class RttEstimator:
    """Smoothed round-trip time, its variation and its minimum, all in seconds."""

    __slots__ = ("latest", "minimum", "smoothed", "variation")

    def __init__(self) -> None:
        self.latest = 0.0
        """The last sample; 0 before the first."""
        self.minimum = 0.0
        self.smoothed = INITIAL_RTT_SECONDS
        self.variation = INITIAL_RTT_SECONDS / 2

    def update(self, sample: float, ack_delay: float) -> None:
        """Record a sample.

        Parameters
        ----------
        sample : float
            From sending the newest packet that an ACK names to receiving that ACK.
        ack_delay : float
            How long the peer claims to have delayed the ACK; bounded by the caller.
        """
        if not self.latest:
            self.latest = self.minimum = self.smoothed = sample
            self.variation = sample / 2
            return
        self.latest = sample
        self.minimum = min(self.minimum, sample)
        # A claimed delay cannot make the path look faster than the fastest sample.
        adjusted = sample - ack_delay if sample - ack_delay >= self.minimum else sample
        self.variation += (abs(self.smoothed - adjusted) - self.variation) / 4
        self.smoothed += (adjusted - self.smoothed) / 8

    def probe_timeout(self, ack_delay_max: float) -> float:
        """Return how long to wait for an ACK before probing (RFC 9002, section 6.2.1)."""
        return self.smoothed + max(4 * self.variation, GRANULARITY_SECONDS) + ack_delay_max
