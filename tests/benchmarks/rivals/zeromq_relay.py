"""ZeroMQ over TCP relays updates: PUSH/PULL to the relay, PUB/SUB from it.

The relay is `zmq.proxy`, which copies nothing and never enters Python. An update is two frames,
its origin, which is the topic, and its body; a worker subscribes to all origins but itself. No
high-water marks, so nothing is ever dropped.

``python -m benchmarks.rivals.zeromq_relay``
"""

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import zmq

from benchmarks.programs import Meter, announce, end_with_parent
from benchmarks.work import Work

TOPIC: Final = struct.Struct(">H")
READY: Final = b"ready"
"""Topic of what a worker sends to see which subscriptions have reached the relay."""

POLL_MILLISECONDS: Final = 10


class _Worker:
    """A worker's two sockets."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", rank: int, work: Work,
                 relay: dict[str, int]) -> None:  # fmt: skip
        self._work = work
        self._topic = TOPIC.pack(rank)
        self.sent = self.received = 0
        self._out = context.socket(zmq.PUSH)
        self.incoming = context.socket(zmq.SUB)
        for sock in (self._out, self.incoming):
            sock.set_hwm(0)
            sock.linger = 0
        self._out.connect(f"tcp://127.0.0.1:{relay['pull']}")
        self.incoming.connect(f"tcp://127.0.0.1:{relay['publish']}")
        for other in range(work.workers):
            if other != rank:
                self.incoming.subscribe(TOPIC.pack(other))
        self.incoming.subscribe(READY)

    def make_ready(self) -> None:
        """Wait until what the relay publishes arrives here."""
        while not self.incoming.poll(POLL_MILLISECONDS):
            self._out.send_multipart([READY, b""])

    def push(self) -> None:
        """Send what may be sent.

        There are no acknowledgements to count; the others' progress stands for ours.
        """
        work = self._work
        while (
            self.sent < work.updates
            and self.sent * work.others - self.received < work.AHEAD * work.others
        ):
            self.sent += 1
            self._out.send_multipart([self._topic, work.body], copy=False)

    def pull(self) -> None:
        """Take an update."""
        topic, body = self.incoming.recv_multipart(copy=False)
        if topic.bytes != READY:
            assert len(body) == len(self._work.body)
            self.received += 1

    def close(self) -> None:
        """Close both."""
        self._out.close()
        self.incoming.close()


def exchange(relay: dict[str, int], pid: int, work: Work) -> Meter:
    """Let the workers do their part; return what it cost the relay."""
    with zmq.Context() as context, _workers(context, work, relay) as workers:
        poller = zmq.Poller()
        for worker in workers:
            worker.make_ready()
            poller.register(worker.incoming, zmq.POLLIN)
        by_socket = {worker.incoming: worker for worker in workers}
        with Meter(pid) as meter:
            while any(worker.received < work.expected for worker in workers):
                for worker in workers:
                    worker.push()
                for sock, _ in poller.poll():
                    by_socket[sock].pull()
    return meter


@contextmanager
def _workers(
    context: "zmq.Context[zmq.Socket[bytes]]", work: Work, relay: dict[str, int]
) -> Iterator[list[_Worker]]:
    workers = [_Worker(context, rank, work, relay) for rank in range(work.workers)]
    try:
        yield workers
    finally:
        for worker in workers:
            worker.close()


def main() -> None:
    """Relay until the parent ends."""
    end_with_parent()
    context = zmq.Context()
    pull, publish = context.socket(zmq.PULL), context.socket(zmq.PUB)
    ports = {}
    for name, sock in (("pull", pull), ("publish", publish)):
        sock.set_hwm(0)
        ports[name] = sock.bind_to_random_port("tcp://127.0.0.1")
    announce(**ports)
    zmq.proxy(pull, publish)


if __name__ == "__main__":
    main()
