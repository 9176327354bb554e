"""`next_received`: what another one's log has after ours, as its messages come."""

from gradwire_codecs import MalformedUpdateError
from gradwire_protocol import InvalidMessageError
from gradwire_protocol.messages.updates import EntriesAssembly
from gradwire_server.log.log import Log
from gradwire_server.log.segments import Segment


def next_received(log: Log, assembly: EntriesAssembly, now: float) -> tuple[Segment, int] | None:
    """Return what follows the head of a log, to be appended, if all messages of it are here.

    Returns
    -------
    tuple or None
        It, and the highest number of its messages.

    Raises
    ------
    InvalidMessageError
        If it does not follow, or has no valid update.
    """
    stop = assembly.after(log.head)
    if stop is None:
        return None
    span, bodies, number = assembly.take(stop)
    if span.start != log.head:
        raise InvalidMessageError(
            f"entries of the log from {span.start} to {stop}; it is here up to {log.head}"
        )
    versions = {rank: log.versions.get(rank, 0) for rank in span.after}
    try:
        return Segment.received(stop, span, bodies, versions, log.elements, now), number
    except MalformedUpdateError as error:
        raise InvalidMessageError(f"entries of the log up to {stop}: {error}") from None
