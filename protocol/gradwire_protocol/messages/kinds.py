"""Kinds of messages and their streams: the language of workers and masters.

::

    kind  name       from    says
    1     JOIN       worker  its identity, its model's layout, and what it has if it is back
    2     WELCOME    master  the worker's rank, the roster, the state of the run
    3     REFUSE     master  the reason why a worker or an order is refused
    4     ROSTER     master  the current roster
    5     SNAPSHOT   both    a block of the replica: from the first worker to the master, then from
                             the master to every later worker
    6     UPDATE     both    an encoded update; the master relays it unchanged or clipped
    7     STABLE     master  the updates that every live worker has
    8     FINISH     worker  its last update was sent; it waits for the others
    9     FINISHED   master  all workers have finished; these are all the updates
    10    LEAVE      worker  its last update was sent; it does not wait
    11    ORDER      operator  an order to the master
    12    DONE       master  the result of an order
    13    CONTENTS   worker  the updates in the replica that it is sending
    14    CONFLATED  master  to a slow worker: a part of a sum, in place of the updates in it
    15    FOLLOW     standby  it follows this master
    16    DIGEST     worker  the digest of its replica, and the updates in it
    17    BLOCKS     master  the digests of all blocks of the replica, and the updates in it
    18    WANT       worker  the blocks that differ and that it wants
    19    PROMISE    both    the master asks a worker to follow it in a term; the worker answers
    20    VOTERS     master  to its standby: the workers whose promises count in a takeover
    21    RECALL     master  a request for updates that the worker still keeps
    22    STOPPING   master  it is about to end; workers have to leave
    23    BUFFERS    both    the values of a worker's buffers; the master relays them
    24    WANT_STATE both    a request for a part of an optimizer's state, or its cancellation
    25    STATE      both    such a part, relayed by the master, or the answer that there is none
    26    WORK       worker  which items it trains on, has finished, and that it wants another one
    27    GRANT      master  an item to train on, or that all are done
    28    STOP       both    all are to end their training; the master passes on what one has said
    29    RELAYING   both    it asks to stand before this master; the master lets it
    30    OPENED     relay   a peer has connected to it
    31    CARRIED    both    a message of such a peer, or for one
    32    ARRIVED    relay   such a message was delivered to its peer
    33    ENDED      both    the connection of a peer is over, or is to be closed
    34    FEED       master  from where on the relay sends a peer the master's updates
    35    MERGED     relay   updates of its peers, as one
    36    TAKEN      master  whether these were taken
    37    REACHED    relay   the updates that all its peers have
    38    ASIDE      both    updates of a peer are kept aside, or no longer are to be
    39    LOGGED     worker  scalars of its training, such as its loss, for people to look at
    40    HISTOGRAMS worker  how its parameters, their last change and its residual are distributed
    41    SAVED      master  to its standby: a part of what was logged until now
    42    PASSED     master  to its standby: what a worker has logged since then

An observer sends JOIN, DIGEST, WANT and LEAVE, and receives what workers receive. An operator sends
ORDER and receives DONE or REFUSE, one for each order, in order. A standby sends FOLLOW and receives
what workers receive, VOTERS, SAVED and PASSED (see `gradwire_server.master.terms`). The role of a
peer follows from its key; without keys, every peer is a worker. What relays say is in
`masters.relaying`.

In a run with rounds (see `modes`), the updates of workers are not relayed. What a round comes to is
an update of a rank of the master's.

Updates travel in the stream of their origin's rank with their sequence as number, so a relayed
message is the same for every receiver. A worker's own stream brings it only corrections: what the
master clipped from its updates. `CONTROL_STREAM` carries the rest in order, numbered from 0 on each
connection. `SNAPSHOT_STREAM` numbers blocks from 0, `CONFLATED_STREAM` parts of sums, and
`STATE_STREAM` parts of optimizers' states. Of what relays say, `RELAYED_STREAM` carries large
messages, in any order. `LOGGED_STREAM` numbers what a worker logs, and what of that a
standby is sent.

Every message is a msgpack map, checked field by field (see `schema`). Encoded updates, values of
blocks and states of optimizers are opaque here.
"""

from enum import IntEnum
from typing import Final

from gradwire_protocol.limits import STREAMS_MAX

CONTROL_STREAM: Final = 2**16 - 1
SNAPSHOT_STREAM: Final = 2**16 - 2
CONFLATED_STREAM: Final = 2**16 - 3
STATE_STREAM: Final = 2**16 - 4
RELAYED_STREAM: Final = 2**16 - 5
LOGGED_STREAM: Final = 2**16 - 6

RANKS_MAX: Final = STREAMS_MAX - 6
"""Most ranks that one run has used: a stream for each, and six others."""

MASTERS_MAX: Final = 90
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
    WORK = 26
    GRANT = 27
    STOP = 28
    RELAYING = 29
    OPENED = 30
    CARRIED = 31
    ARRIVED = 32
    ENDED = 33
    FEED = 34
    MERGED = 35
    TAKEN = 36
    REACHED = 37
    ASIDE = 38
    LOGGED = 39
    HISTOGRAMS = 40
    SAVED = 41
    PASSED = 42


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
    DONE = 74
    """The operator has received its answers."""
    STEPPED_DOWN = 75
    """This master is not in charge, for good or for now."""
    DIVERGED = 76
    """The worker sent an update that takes a parameter beyond the range of the run's integers."""
