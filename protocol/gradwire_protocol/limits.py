"""Every bound of the protocol in one place, each with its reason or its arithmetic.

A loop over something that a peer controls, and a buffer that a peer can fill, ends at one of
these numbers.
"""

from typing import Final

KIB: Final = 2**10
MIB: Final = 2**20
GIB: Final = 2**30

# Datagrams.

DATAGRAM_BYTES_MIN: Final = 1_200
"""Largest UDP payload that every path is expected to carry (RFC 9000, section 14). An INIT is
padded to it, so that a path that cannot is found out at once."""

DATAGRAM_BYTES: Final = 1_400
"""UDP payload unless configured otherwise: 1,428 bytes of IPv4, which fits an Ethernet of 1,500
less the headers of most tunnels. WireGuard's default of 1,420 leaves 1,392: there the kernel cuts
every full datagram in two, and 1,392 is the better setting. A path that carries less and says
nothing of it ends the connection after `STALL_IDLE_TIMEOUTS`."""

DATAGRAM_BYTES_MAX: Final = 8_900
"""Fits the jumbo frames of 9,000 bytes that data centres use."""

PACKET_HEADER_BYTES: Final = 16
TAG_BYTES: Final = 16
"""Of every suite: the size of a fragment does not depend on who gets it."""

DATA_HEADER_BYTES: Final = 20

FRAGMENT_BYTES_MIN: Final = DATAGRAM_BYTES_MIN - PACKET_HEADER_BYTES - DATA_HEADER_BYTES - TAG_BYTES
"""Smallest fragment but for the last of a message, 1,148 bytes. A peer that sent smaller ones
could make the bookkeeping of a message larger than the message."""

FRAGMENT_BYTES_MAX: Final = DATAGRAM_BYTES_MAX - PACKET_HEADER_BYTES - DATA_HEADER_BYTES - TAG_BYTES

# Messages.

MESSAGE_BYTES_MAX: Final = 4 * MIB
"""Largest message. Larger things travel as several: a snapshot in blocks, a dense update in
ranges."""

MESSAGE_OVERHEAD_BYTES: Final = 4_608
"""Charged to flow control for every message besides its length: what its bookkeeping takes, and the
pages of memory that it touches and does not fill. Measured: 2.5 KB for two fragments of 1,148
bytes, 4.5 KB for two of 8,844."""


def charge_of(total: int) -> int:
    """Return what a message of `total` bytes costs of the credit for messages under way.

    It is what the message may take of the receiver's memory before it is complete, whatever its
    sender does: the eighth covers the places of headers and tags (52 of 1,200 bytes) and the parity
    that is kept until it is needed (one of 16 fragments).
    """
    return total + total // 8 + MESSAGE_OVERHEAD_BYTES


BUFFERS_BYTES_MAX: Final = MESSAGE_BYTES_MAX - 256
"""Values of one worker's buffers: what a message holds less the map around it, a million float32.
A master keeps the latest of each rank, and those of who has finished and is gone, of twice as many
ranks as there may be workers: with 56 of these 448 MiB at most. A worker keeps as many of its own
size. Ordinary ones are smaller: the running statistics of a ResNet-50 are 212 KB."""

BUFFERS_BYTES_PER_SECOND_MAX: Final = MESSAGE_BYTES_MAX
BUFFERS_BURST_BYTES: Final = 2 * MESSAGE_BYTES_MAX
"""What a master takes of one worker's buffers, and passes on to all others: the largest once a
second, or those of a ResNet-50 twenty times."""

BUFFERS_UNDER_WAY_BYTES_MAX: Final = MESSAGE_BYTES_MAX
"""Buffers that are under way to one member at once; of what waits only the latest of each rank is
sent. It is what the largest takes, and a quarter of what the member lets us have under way."""

OPEN_MESSAGES_MAX: Final = 1_024
"""Messages that a sender has in flight at once: begun and not yet acknowledged as a whole. Those
of 4 KiB fill 300 Mbit/s over 100 ms."""

STREAMS_MAX: Final = 4_096
"""Streams of one connection: one for each worker of a run, and a few for control."""

FINISHED_RANGES_MAX: Final = 2 * OPEN_MESSAGES_MAX
"""Gaps in the numbers of one stream's complete messages. A sender has at most
`OPEN_MESSAGES_MAX` messages under way, so it leaves fewer gaps than that."""

WINDOW_BYTES: Final = 16 * MIB
"""What one peer may have under way towards us, declared and not yet released: 1 Gbit/s over
100 ms are 12.5 MB."""

WINDOW_BYTES_MIN: Final = charge_of(MESSAGE_BYTES_MAX)
"""A smaller window would stop the largest message for ever."""

REASSEMBLY_BYTES_MAX: Final = GIB
"""What all peers together may have under way towards us, unless configured otherwise. It is kept
by construction: connections times window never exceed it."""

assert WINDOW_BYTES >= WINDOW_BYTES_MIN

# Acknowledgements.

ACK_RANGES_MAX: Final = 64
"""Ranges in one ACK frame, 4 bytes each; the newest ones are sent."""

RECEIVED_RANGES_MAX: Final = 1_024
"""Ranges of received packet numbers that are remembered. With one packet in a hundred lost they
reach back a hundred thousand packets; what is older than that is taken for a duplicate."""

ACK_EVERY: Final = 32
"""Acknowledge at least every so many packets that ask for it."""

ACKS_UNASKED_MAX: Final = 8
"""Every so many packets with nothing but an acknowledgement, one asks for an acknowledgement
itself: else the ranges would grow for ever."""

ACK_DELAY_SECONDS_MAX: Final = 0.005
"""Acknowledge no later than this: below what a probe timeout tolerates, above a timer tick."""

# Loss recovery (RFC 9002; the section is named where the constant is used).

PACKET_THRESHOLD: Final = 3
TIME_THRESHOLD: Final = 9 / 8
GRANULARITY_SECONDS: Final = 0.001
"""The least that a probe timeout waits beyond the round trip, and that a packet which was overtaken
gets before it counts as lost."""

INITIAL_RTT_SECONDS: Final = 0.1
"""Shorter than RFC 9002's 333 ms: the handshake has its own timer, and then there is a sample."""

ACK_RECORDS_MAX: Final = 256
"""Packets without anything to acknowledge of which a record is kept. Their acknowledgement tells
which of our ACKs arrived; a peer that never gives one must not make the records grow."""

PTO_BACKOFF_MAX: Final = 6
"""Probe timeouts double at most so often: 64 times the first one."""

PROBE_PACKETS: Final = 2
TAIL_PROBE_PACKETS_MAX: Final = 8
"""Packets that a probe timeout sends again where nothing else is to be sent: the end of a message
whose last packets are lost would otherwise take a round trip for every two of them."""

PACKET_THRESHOLD_MAX: Final = 2**15
TIME_THRESHOLD_MAX: Final = 2.0
"""What reordering can widen the two thresholds to."""

PERSISTENT_CONGESTION_TIMEOUTS: Final = 3
"""Losing everything for so many probe timeouts means that the path is not what it was (RFC 9002,
section 7.6)."""

SENT_PACKETS_MAX: Final = 2**17
"""Packets sent of which the oldest is not accounted for; more wait. 180 MB of 1,400 bytes."""

SKIP_PACKETS_MEAN: Final = 1_024
"""One packet number in so many is left out, at random: who acknowledges it lies (RFC 9000, section
21.4)."""

# Trains.

TRAIN_BYTES_MAX: Final = 64_000
TRAIN_PACKETS_MAX: Final = 64
"""What the kernel cuts into datagrams in one call: 65,507 bytes is its limit, and more than 64
segments are refused by older ones."""

VECTOR_PACKETS_MIN: Final = 4
"""Fewer packets than these are handled one by one: below, numpy costs more than it saves."""

# Keys and handshakes.

RUN_KEYS_MAX: Final = 8
"""Run keys that a master accepts at once: one, and the one before it while keys are rotated."""

PACKET_NUMBERS_BITS: Final = 62
"""Packet numbers of a direction, with room to spare in their 64 bits: at ten million a second they
last for 14,000 years, so nothing has to be done where they end."""

EPOCH_PACKETS_BITS: Final = 24
"""Packets of one key, as a power of two: 16.8 million, 36 seconds at 5 Gbit/s. A key may see 2^28
packets of 2 KiB (RFC 9001, appendix B.1), and these have up to 8,900 bytes, 4.4 times as many."""

FORGERIES_MAX: Final = 2**36
"""Packets that did not open, in one epoch, before the connection is closed. The chance that a
forged one opens is then below 2^-57 (RFC 9001, appendix B, with packets of 8,900 bytes), and
nobody can reach it: 2^36 datagrams take three hours at 5 million a second. A limit that could be
reached would be a way to end connections for everyone who can send datagrams."""

WORKSPACE_SIZES_MAX: Final = 8
"""Packet sizes for which an endpoint keeps its room for trains cut up, the longest unused giving
way; about 64 KiB each. A path has one or two."""

INITS_PER_SECOND: Final = 200
INITS_BURST: Final = 200
"""INITs without a cookie that are looked at; beyond, a cookie is asked for. At 15 us for a forged
one they take 0.3 % of a core, at 100 us for an honest one 2 %."""

SOURCE_INITS_PER_SECOND: Final = 20
SOURCE_INITS_BURST: Final = 40
"""INITs of one source, an IPv4 address or half an IPv6 one, that are looked at. The burst is that
of a machine on which dozens of workers start at once."""

SOURCES_MAX: Final = 2**16
"""Sources of which such a count is kept, the oldest giving way; about 150 bytes each. With cookies
nobody fills it who does not own as many addresses."""

RETRIES_MAX: Final = 3
"""Cookies that an initiator takes up for one INIT: whoever sends more is no master of ours."""

COOKIE_SECONDS: Final = 120.0
"""The secret behind cookies is renewed so often, and the one before still holds."""

REPLAYS_MAX: Final = 2**16
"""Keys of which the time of the last INIT is known, the longest unused giving way; about 150 bytes
each. Only who has the run key can make more than that."""

RESETS_PER_SECOND: Final = 500
"""Packets of unknown sessions that are answered with a RESET, 1 % of a core at 20 us each. A worker
of a master that was restarted probes with two packets, and then waits twice as long as before: who
gets no answer loses seconds, and holds up everyone. A RESET is smaller than what it answers, so it
is useless for attacking a third party."""

RESET_DATAGRAM_BYTES_MIN: Final = 48
"""Smaller packets are not answered with one, so that two who do not know each other's sessions fall
silent: a RESET has 24."""

# Handshake and life of a connection.

HANDSHAKE_TIMER_SECONDS: Final = 0.25
HANDSHAKE_TIMER_SECONDS_MAX: Final = 2.0
"""An INIT is repeated after this time, doubled every time up to the latter."""

INIT_SECONDS_MAX: Final = 5.0
"""After this time an initiator makes a new INIT: the responder may have answered the old one, its
answer may be lost, and it may have forgotten it since."""

HALF_OPEN_MAX: Final = 256
HALF_OPEN_SECONDS_MAX: Final = 10.0
"""INITs that were answered and not yet followed by a packet, the oldest giving way; about 2 KiB
each, keys and ACCEPT included."""

HALF_OPEN_OF_KEY_MAX: Final = 4
"""Of which with one key, the oldest giving way: a worker dials once at a time, so these are it and
attempts that it gave up. Without keys, anybody may have all of them."""

IDLE_TIMEOUT_SECONDS_MAX: Final = 3_600.0
"""Nobody gone for an hour is waited for."""

STALL_IDLE_TIMEOUTS: Final = 2
"""A message of which nothing arrives for so many idle timeouts ends the connection, although the
peer is there: small packets keep it alive on a path that swallows the large ones."""

CHALLENGE_TRIES_MAX: Final = 3
"""Challenges sent to a new address before it is given up, each when enough has come from there."""

RESPONSES_MAX: Final = 2
"""Answers to challenges that are owed at once; the oldest gives way, and is asked for again."""

AMPLIFICATION_MAX: Final = 1
"""What an address that has not proved itself gets is at most so many times what came from there.
RFC 9000, section 8.1, allows three times as much, for the sake of certificates."""

CHALLENGE_DATAGRAM_BYTES: Final = PACKET_HEADER_BYTES + 16 + TAG_BYTES
"""A packet with a CHALLENGE and nothing else."""

CLOSE_COPIES: Final = 3
"""A CLOSE is not acknowledged; it is sent so often, a probe timeout apart."""

REASON_BYTES_MAX: Final = 255
"""Length of the reason in a CLOSE frame: its length field is one byte."""

EVENTS_MAX: Final = 2**16
"""Events waiting for the application; it has to take them after every call, so this is a fault
of ours, not of a peer."""
