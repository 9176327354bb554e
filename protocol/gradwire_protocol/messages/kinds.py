"""Kinds of messages and their streams: the language of workers and masters.

::

    kind  name       from    says
    1     JOIN       worker  its identity, its model's layout, and what it has if it is back
    2     WELCOME    master  the worker's rank, the roster, the state of the run
    3     REFUSE     master  the reason why a worker is refused
    4     ROSTER     master  the current roster
    5     SNAPSHOT   both    a block of the replica: from the first worker to the master, then from
                             the master to every later worker
    6     UPDATE     worker  an encoded update
    7     STABLE     master  up to where every live worker has the log
    8     FINISH     worker  its last update was sent; it waits for the others
    9     FINISHED   master  all workers have finished; these are all the updates
    10    LEAVE      worker  its last update was sent; it does not wait
    13    CONTENTS   worker  the updates in the replica that it is sending
    14    ENTRIES    both    a part of what the log has between two positions
    15    FOLLOW     standby  it follows this master
    16    DIGEST     worker  the digest of its replica at a position of the log
    17    BLOCKS     master  the digests of all blocks of the replica, and the updates in it
    18    WANT       worker  the blocks that differ and that it wants
    19    PROMISE    both    the master asks a worker to follow it in a term; the worker answers
    20    VOTERS     master  to its standby: the workers whose promises count in a takeover
    22    STOPPING   master  it is about to end; workers have to leave
    23    BUFFERS    both    the values of a worker's buffers; the master relays them
    26    WORK       worker  which items it trains on, has finished, and that it wants another one
    27    GRANT      master  an item to train on, or that all are done
    28    STOP       both    all are to end their training; the master passes on what one has said
    29    ASIDE      master  the worker's updates are kept aside from this one on
    30    LOGGED     worker  scalars of its training, such as its loss, for people to look at
    31    HISTOGRAMS worker  how the values of its parameters are distributed, likewise
    32    TRUNK      both    a relay is one, and its parent takes it as that
    33    BRANCH     both    what a worker behind a relay says and hears; see `relays`
    34    RECEIPTS   relay   which messages workers behind it have received
    35    RETURNED   master  to a relay: what a worker behind it may send again
    36    FEED       master  to a relay: from where on it is sent the log
    37    FED        master  to a relay: which worker it sends the log to, and from where on
    38    HAVE       relay   up to where all its workers have the log
    39    UNFED      relay   which worker it cannot send the log
    40    ELSEWHERE  relay   where else the run can be reached

An observer sends JOIN, DIGEST, WANT and LEAVE, and receives what workers receive. A standby sends
FOLLOW and receives what workers receive, and VOTERS (see `gradwire_server.master.terms`). The role
of a peer follows from its key; without keys, every peer is a worker.

In a run with rounds (see `modes`), the updates of workers are not relayed. What a round comes to is
an update of a rank of the master's.

Updates travel to the master in the stream of their origin's rank, with their sequence as number.
`CONTROL_STREAM` carries the rest in order, numbered from 0 on each connection. `SNAPSHOT_STREAM`
numbers blocks from 0. In `LOG_STREAM` numbers rise, and leave out some: they count the messages
that a master makes of its log, so that members can share these. `LOGGED_STREAM` has what a worker
logs, numbered from 0, and what a relay says to a worker by itself. On the connection of a relay,
which has no rank, `BRANCH_STREAM` carries what is said by and to the workers behind it.

Every message is a msgpack map, checked field by field (see `schema`). Encoded updates and values of
blocks are opaque here.
"""

from enum import IntEnum
from typing import Final

from gradwire_protocol.limits import STREAMS_MAX

CONTROL_STREAM: Final = 2**16 - 1
SNAPSHOT_STREAM: Final = 2**16 - 2
LOG_STREAM: Final = 2**16 - 3
LOGGED_STREAM: Final = 2**16 - 4
BRANCH_STREAM: Final = 0
"""Only between a relay and its parent: else it is that of rank 0."""

RANKS_MAX: Final = STREAMS_MAX - 4
"""Most ranks that one run has used: a stream for each, and four others."""

MASTERS_MAX: Final = 92
"""Most masters of one run that have closed rounds."""

WORKERS_MAX: Final = RANKS_MAX - MASTERS_MAX
"""Most workers of one run. The ranks from here on are those of masters: the results of rounds are
updates of one of them. Each master that goes on with a run takes another one, because the last one
may have closed rounds that were lost with it."""

RANK_END: Final = LOGGED_STREAM
"""Every rank is below. Masters have 60,000 to choose from, because each takes one at random, and
may not know which one the last has had."""


class Kind(IntEnum):
    """The kind of a message."""

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
    CONTENTS = 13
    ENTRIES = 14
    FOLLOW = 15
    DIGEST = 16
    BLOCKS = 17
    WANT = 18
    PROMISE = 19
    VOTERS = 20
    STOPPING = 22
    BUFFERS = 23
    WORK = 26
    GRANT = 27
    STOP = 28
    ASIDE = 29
    LOGGED = 30
    HISTOGRAMS = 31
    TRUNK = 32
    BRANCH = 33
    RECEIPTS = 34
    RETURNED = 35
    FEED = 36
    FED = 37
    HAVE = 38
    UNFED = 39
    ELSEWHERE = 40


class EndCode(IntEnum):
    """Why a master or a worker closed a connection. The transport's own codes are lower."""

    LEFT = 64
    """The worker left; its LEAVE was received."""
    REFUSED = 65
    """The REFUSE was delivered, or not taken in time."""
    STOPPED = 66
    """The master was told to stop."""
    TOO_SLOW = 67
    """More data waits for this worker than the master keeps for it, or it took nothing for too
    long."""
    MALFORMED_UPDATE = 68
    """The worker sent an update that does not fit the run."""
    NO_JOIN = 69
    """No JOIN or other request came in time."""
    ABORTED = 70
    """The worker gave up: its training failed, or its process is about to end."""
    QUARANTINED = 71
    """The worker was in quarantine for an update that was far too large; the master does not wait
    for it."""
    EXPELLED = 72
    """An operator sent the worker or observer away."""
    RUN_OVER = 73
    """The observer was still there when the next run began."""
    STEPPED_DOWN = 75
    """This master is not in charge, for good or for now."""
    DIVERGED = 76
    """The worker sent an update that takes a parameter beyond the range of the run's integers."""
