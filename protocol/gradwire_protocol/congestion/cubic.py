"""Cubic of RFC 9438, the window control of most TCP.

After a loss the window is cut to 70 % and grows back along a cubic function of time: fast at first,
slowly around the window at which packets were lost, then fast again. Where an additive-increase
flow would have a larger window, that window is used (the Reno-friendly region). Cubic shares a link
fairly with TCP and, like TCP, treats every loss as congestion: at 1 % random loss it uses a few
percent of a long path.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import ClassVar, Final

from gradwire_protocol.congestion.controller import (
    UNKNOWN_RTT_SECONDS,
    WINDOW_PACKETS_INITIAL,
    WINDOW_PACKETS_MIN,
    AckSample,
    CongestionController,
)

BETA: Final = 0.7
C: Final = 0.4
"""Datagrams per cubic second."""

ALPHA: Final = 3 * (1 - BETA) / (1 + BETA)
"""Growth per round trip with which an additive-increase flow with the reduction `BETA` gets the
same share as Reno (section 4.3)."""

TARGET_MAX: Final = 1.5
"""The window grows by no more than half in a round trip (section 4.2)."""

PACING_GAIN: Final = 1.25
PACING_GAIN_SLOW_START: Final = 2.0
"""Pacing as a multiple of window over round trip, so that pacing alone never keeps the window from
filling."""

FULL_SHARE: Final = 0.5
"""Share of the window that has to be in flight for the window to count as used; it grows only
then."""


@dataclass(slots=True)
class CubicState:
    """The state that a reduction changes and an undo restores. Sizes in bytes."""

    window: float
    """cwnd in the RFC."""
    threshold: float = inf
    """ssthresh: below it the window doubles every round trip."""
    peak: float = 0.0
    """W_max: where the cubic function has its plateau."""
    prior: float = 0.0
    """cwnd_prior: the window before the reduction."""
    estimate: float = 0.0
    """W_est: the window of an additive-increase flow."""
    epoch: float | None = None
    """t_epoch: when the window began to grow again; None before that."""
    plateau_after: float = 0.0
    """K: seconds from `epoch` to the plateau."""
    recovery_since: float = -inf
    """When the reduction was made. Losses of packets sent earlier belong to it."""


class Cubic(CongestionController):
    """Window-based control."""

    __slots__ = (
        "_acked_at",
        "_datagram_bytes",
        "_doubtful_bytes",
        "_saved",
        "_sent_at",
        "_state",
        "pacing_rate",
        "window_bytes",
    )

    name: ClassVar[str] = "cubic"

    _state: CubicState
    _saved: CubicState | None
    """State before the last reduction; None if that cannot be undone."""
    _doubtful_bytes: int
    """Bytes lost since the last reduction and not found to be late."""
    _acked_at: float

    def __init__(self, datagram_bytes: int, random: Callable[[], float]) -> None:
        self._datagram_bytes = datagram_bytes
        self._sent_at = -inf
        self._start()

    # Input.

    def on_sent(self, size: int, in_flight: int, *, app_limited: bool, now: float) -> None:
        """Record when: packets sent on a former path say nothing about a new one."""
        self._sent_at = now

    def on_ack(self, sample: AckSample) -> None:
        """Grow the window, if it was in use and the packet is younger than the last reduction."""
        state, now, acked = self._state, sample.now, sample.acked_bytes
        if sample.sent_at > state.recovery_since:
            if sample.marked:
                self._reduce(now)
                self._saved = None
            elif sample.in_flight + acked < FULL_SHARE * state.window:
                if state.epoch is not None:
                    # Time in which the application has little to send does not count (section 5.8).
                    state.epoch += now - self._acked_at
            elif state.window < state.threshold:
                state.window += acked
            else:
                self._avoid_congestion(acked, sample.smoothed_rtt, now)
        self._acked_at = now
        state = self._state
        gain = PACING_GAIN_SLOW_START if state.window < state.threshold else PACING_GAIN
        self.window_bytes = int(state.window)
        self.pacing_rate = gain * state.window / sample.smoothed_rtt

    def on_lost(self, size: int, sent_at: float, in_flight: int, now: float) -> None:
        """Cut the window, unless an earlier reduction covers this loss."""
        if sent_at > self._state.recovery_since:
            self._reduce(now)
        self._doubtful_bytes += size

    def on_spurious_loss(self, size: int, now: float) -> None:
        """Undo the last reduction if all packets lost since have arrived (section 4.9)."""
        self._doubtful_bytes -= size
        if self._saved is not None and self._doubtful_bytes <= 0:
            window = self._state.window
            self._state = self._saved
            self._state.window = max(self._state.window, window)
            self._saved = None
            self.window_bytes = int(self._state.window)

    def on_persistent_congestion(self) -> None:
        """Start from the smallest window, up to the threshold left by the losses (section 4.8)."""
        self._state = CubicState(
            WINDOW_PACKETS_MIN * self._datagram_bytes,
            self._state.threshold,
            recovery_since=self._state.recovery_since,
        )
        self._saved = None
        self.window_bytes = int(self._state.window)

    def on_path_changed(self) -> None:
        """Restart; packets under way belong to the former path."""
        self._start()
        self._state.recovery_since = self._sent_at

    def set_datagram_bytes(self, datagram_bytes: int) -> None:
        """Use another datagram size from now on."""
        self._datagram_bytes = datagram_bytes

    # Private.

    def _start(self) -> None:
        self._state = CubicState(WINDOW_PACKETS_INITIAL * self._datagram_bytes)
        self._saved = None
        self._doubtful_bytes = 0
        self._acked_at = 0.0
        self.window_bytes = int(self._state.window)
        self.pacing_rate = self.window_bytes / UNKNOWN_RTT_SECONDS

    def _reduce(self, now: float) -> None:
        """Answer a congestion event (section 4.6) and leave room for other flows (section 4.7)."""
        state = self._saved = self._state
        window = max(BETA * state.window, WINDOW_PACKETS_MIN * self._datagram_bytes)
        shrinking = state.window < state.peak
        peak = state.window * (1 + BETA) / 2 if shrinking else state.window
        self._state = CubicState(window, window, peak, prior=state.window, recovery_since=now)
        self._doubtful_bytes = 0
        self.window_bytes = int(window)

    def _avoid_congestion(self, acked: int, smoothed_rtt: float, now: float) -> None:
        """Follow the cubic function (4.2), or the additive-increase flow if that is ahead (4.3)."""
        state, datagram_bytes = self._state, self._datagram_bytes
        window = state.window
        if state.epoch is None:
            state.epoch = now
            state.estimate = window
            state.peak = max(state.peak, window)
            state.plateau_after = ((state.peak - window) / (C * datagram_bytes)) ** (1 / 3)
        elapsed = now - state.epoch
        alpha = ALPHA if state.estimate < state.prior else 1.0
        state.estimate += alpha * acked * datagram_bytes / window
        ahead = elapsed + smoothed_rtt - state.plateau_after
        target = state.peak + C * datagram_bytes * ahead**3
        target = min(max(target, window), TARGET_MAX * window)
        state.window = max(window + (target - window) * acked / window, state.estimate)
