"""Kinds of messages, and their streams: what workers and the master of a run say to each other.

::

    kind  name       from    says
    1     JOIN       worker  who I am, what my model looks like, what I have if I am back
    2     WELCOME    master  your rank, who takes part, where your updates and the run's stand
    3     REFUSE     master  no, and why
    4     ROSTER     master  who takes part now
    5     SNAPSHOT   both    a block of the replica: the first worker to the master, then the
                             master to every later worker
    6     UPDATE     both    an encoded update; the master passes it on as it is, or clipped
    7     STABLE     master  every live worker has these updates
    8     FINISH     worker  that was my last update
    9     FINISHED   master  nobody sends any more; these are all updates there are
    10    LEAVE      worker  that was my last update, do not wait for me
    11    ORDER      operator  do this
    12    DONE       master  it is done, or what was asked for
    13    CONTENTS   worker  which updates the replica contains that I send you
    14    CONFLATED  master  a part of a sum of updates, in place of them: you are slow
    15    FOLLOW     standby  I am your standby, and in charge of nothing
    16    DIGEST     worker  the digest of my replica, and what is in it
    17    BLOCKS     master  the digests of all blocks of the replica, and what is in it: which of
                             yours differ?
    18    WANT       worker  these: send them to me
    19    PROMISE    both    will you follow me in this term? I follow nobody of an earlier one
    20    VOTERS     master  to its standby: whose promises it takes to go on in my place
    21    RECALL     master  send me these updates again, which you keep
    22    STOPPING   master  I am about to end: leave
    23    BUFFERS    both    what the buffers of a worker's module hold; the master passes it on
    24    WANT_STATE both    give me a part of an optimizer's state; or: no more of it
    25    STATE      both    a part of it; the master passes it on; or: there is none

An observer says JOIN, DIGEST, WANT and LEAVE, and hears what workers hear; an operator says ORDER,
and hears DONE or REFUSE, one for each, in order. A standby says FOLLOW, and hears what workers
hear, and VOTERS (see `gradwire_server.master.terms`). What a peer is, its key says; without keys,
everyone is a worker.

Streams give messages their place: updates travel in the stream of their origin's rank with their
sequence as number, so a relayed message is the same for everyone. The stream of a worker's own rank
brings it corrections only: what an update of its own is less for the others. `CONTROL_STREAM`
carries the rest in order, numbered from 0 on each connection; `SNAPSHOT_STREAM` numbers blocks from
0, `CONFLATED_STREAM` parts of sums, and `STATE_STREAM` parts of optimizers' states.

Every message is a msgpack map, checked field by field (see `schema`). An encoded update, the values
of a block and the state of an optimizer are opaque here.
"""

from enum import IntEnum
from typing import Final

from gradwire_protocol.limits import STREAMS_MAX

RANKS_MAX: Final = STREAMS_MAX - 4
"""Most workers of one run: a stream each, and four more."""

CONTROL_STREAM: Final = 2**16 - 1
SNAPSHOT_STREAM: Final = 2**16 - 2
CONFLATED_STREAM: Final = 2**16 - 3
STATE_STREAM: Final = 2**16 - 4


class Kind(IntEnum):
    """Which message it is."""

    JOIN = 1
    WELCOME = 2
    REFUSE = 3
    ROSTER = 4
    SNAPSHOT = 5
    UPDATE = 6
    STABLE = 7
    FINISH = 8
    FINISHED = 9
    LEAVE = 10
    ORDER = 11
    DONE = 12
    CONTENTS = 13
    CONFLATED = 14
    FOLLOW = 15
    DIGEST = 16
    BLOCKS = 17
    WANT = 18
    PROMISE = 19
    VOTERS = 20
    RECALL = 21
    STOPPING = 22
    BUFFERS = 23
    WANT_STATE = 24
    STATE = 25


class EndCode(IntEnum):
    """Why a master or a worker closed a connection; above the transport's own codes."""

    LEFT = 64
    """The worker left; its LEAVE was received."""
    REFUSED = 65
    """The REFUSE was delivered, or nobody took it in time."""
    STOPPED = 66
    """The master was told to stop."""
    TOO_SLOW = 67
    """More waits for this worker than the master keeps for it, or it took nothing for too long."""
    MALFORMED_UPDATE = 68
    """The worker sent an update that does not fit the run."""
    NO_JOIN = 69
    """Nothing was asked for in time."""
    ABORTED = 70
    """The worker gave up: its training failed, or its process is about to end."""
    QUARANTINED = 71
    """The worker was in quarantine for an update far too large, and is not waited for."""
    EXPELLED = 72
    """An operator sent the worker or observer away."""
    RUN_OVER = 73
    """The observer was still there when the next run began."""
    DONE = 74
    """The operator has its answers."""
    STEPPED_DOWN = 75
    """This master is not in charge any more; another one is, or it will be again."""
