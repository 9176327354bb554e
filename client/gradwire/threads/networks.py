"""`Networks`: the network threads of a session, one for each of its masters."""

from gradwire.replica.stats import Traffic
from gradwire.threads.network import NetworkThread
from gradwire.worker.worker import Worker


class Networks:
    """The threads of a session; empty at first."""

    def __init__(self) -> None:
        self._threads: list[NetworkThread[Worker]] = []

    def add(self, thread: NetworkThread[Worker]) -> None:
        """Add a thread that was started."""
        self._threads.append(thread)

    def abort(self, reason: str) -> None:
        """Leave at once, whatever was not sent yet."""
        for thread in self._threads:
            thread.call(thread.worker.abort, reason)

    def stop(self) -> None:
        """Send what is still to be said, and end the threads; waits for that, with a limit."""
        for thread in self._threads:
            thread.stop()

    @property
    def traffic(self) -> Traffic:
        """What was sent and received so far."""
        each = [thread.traffic for thread in self._threads]
        return Traffic(*map(sum, zip(*each, strict=True)))
