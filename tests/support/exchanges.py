"""A congestion controller by itself: trains that are acknowledged one after the other."""

from gradwire_protocol.congestion import AckSample, CongestionController

DATAGRAM = 1000
RTT = 0.1


class Exchanges:
    """Sends trains and answers each before the next: every exchange is a round.

    Parameters
    ----------
    controller : CongestionController
        Its datagrams are of `DATAGRAM` bytes.
    """

    def __init__(self, controller: CongestionController) -> None:
        self.controller = controller
        self.now = 100.0
        self.sent_at = self.now
        """When the last train left."""
        self._number = 0

    def exchange(
        self,
        size: int,
        *,
        rtt: float = RTT,
        ack_delay: float = 0.0,
        in_flight: int = 0,
        app_limited: bool = False,
        lost: int = 0,
        marked: int = 0,
    ) -> None:
        """Send a train, and acknowledge all of it but `lost` bytes a round trip later.

        Whatever is `in_flight` besides stays there.
        """
        departure = self.send(size, in_flight=in_flight, app_limited=app_limited)
        self.now += rtt
        if lost:
            self.controller.on_lost(lost, self.sent_at, in_flight, self.now)
        self.acknowledge(
            size - lost,
            departure,
            rtt=rtt,
            ack_delay=ack_delay,
            in_flight=in_flight,
            marked=marked,
        )

    def send(self, size: int, *, in_flight: int = 0, app_limited: bool = False) -> object:
        """Send a train; return what the controller wants to see again."""
        self.sent_at = self.now
        self._number += -(-size // DATAGRAM)
        return self.controller.on_sent(size, in_flight, app_limited=app_limited, now=self.now)

    def acknowledge(
        self,
        size: int,
        departure: object,
        *,
        rtt: float | None = RTT,
        ack_delay: float = 0.0,
        in_flight: int = 0,
        marked: int = 0,
    ) -> None:
        """Acknowledge the last train, or a part of it."""
        self.controller.on_ack(
            AckSample(
                now=self.now,
                acked_bytes=size,
                in_flight=in_flight,
                departure=departure,
                sent_at=self.sent_at,
                number=self._number - 1,
                next_number=self._number,
                ack_delay=ack_delay,
                rtt=rtt,
                smoothed_rtt=rtt or RTT,
                marked=marked,
            )
        )
