"""Every bound of the protocol, each with its reason or its arithmetic.

Each loop over data that a peer controls, and each buffer that a peer can fill, ends at one of these
numbers.
"""

from typing import Final

KIB: Final = 2**10
MIB: Final = 2**20
GIB: Final = 2**30

# Datagrams.

DATAGRAM_BYTES_MIN: Final = 1_200
"""Largest UDP payload that every path is expected to carry (RFC 9000, section 14). An INIT is
padded to this size, so a path that cannot carry it shows at once."""

DATAGRAM_BYTES: Final = 1_400
"""Default UDP payload: 1,428 bytes of IPv4, which fits an Ethernet frame of 1,500 less the headers
of most tunnels. WireGuard's default of 1,420 leaves 1,392: there the kernel splits every full
datagram in two. If a path carries less and reports nothing, the
connection ends after `STALL_IDLE_TIMEOUTS`."""

DATAGRAM_BYTES_MAX: Final = 8_900
"""Fits the jumbo frames of 9,000 bytes that data centres use."""

PACKET_HEADER_BYTES: Final = 16
TAG_BYTES: Final = 16
"""The same in every suite, so the size of a fragment does not depend on its receiver."""

DATA_HEADER_BYTES: Final = 20

FRAGMENT_BYTES_MIN: Final = DATAGRAM_BYTES_MIN - PACKET_HEADER_BYTES - DATA_HEADER_BYTES - TAG_BYTES
"""Smallest fragment, except for the last of a message: 1,148 bytes. With smaller ones a peer could
make the bookkeeping of a message larger than the message."""

FRAGMENT_BYTES_MAX: Final = DATAGRAM_BYTES_MAX - PACKET_HEADER_BYTES - DATA_HEADER_BYTES - TAG_BYTES

# Messages.

MESSAGE_BYTES_MAX: Final = 4 * MIB
"""Largest message. A snapshot travels in blocks and a dense update in ranges, one message each."""

MESSAGE_OVERHEAD_BYTES: Final = 4_608
"""Charged to flow control for every message on top of its length. It covers the bookkeeping and the
partly filled memory pages. Measured: 2.5 KB for two fragments of 1,148 bytes, 4.5 KB for two of
8,844."""


def charge_of(total: int) -> int:
    """Return the credit that a message of `total` bytes costs while it is under way.

    The charge is the most memory that the receiver may spend on the message before it is complete,
    whatever the sender does. The extra eighth is more than the space for headers and tags takes:
    52 bytes for every 1,148, at most.
    """
    return total + total // 8 + MESSAGE_OVERHEAD_BYTES


BUFFERS_BYTES_MAX: Final = MESSAGE_BYTES_MAX - 256
"""Values and description of one worker's buffers: a message less the map around it. A master
keeps the latest buffers of each rank, including finished ranks, for twice as many ranks as there
may be workers: with 56 workers 448 MiB at most. A worker keeps as many of its own size. Ordinary
buffers are smaller: the running statistics of a ResNet-50 are 212 KB."""

BUFFER_LAYOUT_BYTES_MAX: Final = 512 * KIB
"""Names, shapes and types of one worker's buffers: 70 bytes each, 11 KB for a ResNet-50."""

BUFFERS_BYTES_PER_SECOND_MAX: Final = MESSAGE_BYTES_MAX
BUFFERS_BURST_BYTES: Final = 2 * MESSAGE_BYTES_MAX
"""Rate at which a master accepts one worker's buffers and relays them to all others: the largest
once a second, or those of a ResNet-50 twenty times."""

BUFFERS_UNDER_WAY_BYTES_MAX: Final = MESSAGE_BYTES_MAX
"""Buffers under way to one member at once. Of those that wait, only the latest of each rank is
sent. The limit is the size of the largest buffers, and a quarter of the member's window."""

OPEN_MESSAGES_MAX: Final = 1_024
"""Messages that a sender has begun and the peer has not yet acknowledged as a whole. With messages
of 4 KiB this fills 300 Mbit/s over 100 ms."""

STREAMS_MAX: Final = 4_096
"""Streams of one connection: one for each worker of a run, and a few for control."""

FINISHED_RANGES_MAX: Final = 2 * OPEN_MESSAGES_MAX
"""Gaps in the numbers of one stream's complete messages. A sender has at most
`OPEN_MESSAGES_MAX` messages under way, so it leaves fewer gaps than that."""

WINDOW_BYTES: Final = 16 * MIB
"""Message bytes that one peer may have declared to us and we have not released: 1 Gbit/s over 100
ms is 12.5 MB."""

WINDOW_BYTES_MIN: Final = charge_of(MESSAGE_BYTES_MAX)
"""A smaller window would stop the largest message for ever."""

REASSEMBLY_BYTES_MAX: Final = GIB
"""Message bytes that all peers together may have under way towards us, unless configured otherwise.
Connections times window never exceed it, so it holds by construction."""

assert WINDOW_BYTES >= WINDOW_BYTES_MIN

# Acknowledgements.

ACK_RANGES_MAX: Final = 64
"""Ranges in one ACK frame, 4 bytes each; the newest ones are sent."""

RECEIVED_RANGES_MAX: Final = 1_024
"""Ranges of received packet numbers that are remembered. With one packet in a hundred lost they
reach back a hundred thousand packets. Older packets are treated as duplicates."""

ACK_EVERY: Final = 32
"""Packets asking for an acknowledgement after which one is sent at once."""

ACKS_UNASKED_MAX: Final = 8
"""After this many packets with nothing but an acknowledgement, one asks for an acknowledgement
itself. Without it the received ranges would grow without end."""

ACK_DELAY_SECONDS_MAX: Final = 0.005
"""Longest delay of an acknowledgement: shorter than a probe timeout allows for, longer than a timer
tick."""

# Loss recovery (RFC 9002; the section is named where the constant is used).

PACKET_THRESHOLD: Final = 3
TIME_THRESHOLD: Final = 9 / 8
GRANULARITY_SECONDS: Final = 0.001
"""The least that a probe timeout waits beyond the round trip, and that a packet which was overtaken
gets before it counts as lost."""

INITIAL_RTT_SECONDS: Final = 0.1
"""Shorter than RFC 9002's 333 ms: the handshake has a timer of its own, and the first sample
follows soon."""

ACK_RECORDS_MAX: Final = 256
"""Records kept of packets that ask for no acknowledgement. When one is acknowledged after all, it
shows which of our ACKs arrived. The limit keeps the records bounded if the peer never does."""

PROBE_BACKOFF: Final = 1.5
"""Probe timeouts from one probe to the next. RFC 9002 doubles them, so after 8 seconds without a
word it takes seconds to go on. Two packets in so long a time are no burden, and at most two probe
timeouts after a path has healed data arrives."""

LONG_SILENCE_SECONDS: Final = 4.0
LONG_SILENCE_PROBE_SECONDS: Final = 0.3
"""After so long a silence, the shortest time from one probe to the next."""

RTT_DOUBTED_SECONDS: Final = 0.5
RTT_DOUBTED_TIMEOUTS: Final = 2
"""A round trip longer than both, the second in probe timeouts, is doubted if the peer was silent
for half of it: one side or the path may have stood still, which is over. It counts if one that
began later is as long. On a slow path with a long queue the peer is not silent meanwhile."""

PROBE_PACKETS: Final = 2
BURST_PROBES: Final = 4
BURST_PROBE_PACKETS_MIN: Final = 4
BURST_PROBE_PACKETS_MAX: Final = 32
COLD_PROBE_PACKETS_MAX: Final = 8
"""The first probe timeouts send as many packets as are in flight, and twice as many each time:
within these limits, and no more than the path was seen to carry in a round trip. A burst of losses
can take a whole message. Resending it two packets at a time would cost a round trip for every two.
The third limit holds while nothing has arrived on a path, which dozens of new connections may have
filled together."""

PACKET_THRESHOLD_MAX: Final = 2**15
TIME_THRESHOLD_MAX: Final = 2.0
"""Limits up to which reordering can raise the two thresholds."""

PERSISTENT_CONGESTION_TIMEOUTS: Final = 3
"""If every packet is lost for this many probe timeouts, the path has changed (RFC 9002, section
7.6)."""

SENT_PACKETS_MAX: Final = 2**17
"""Packets from the oldest unresolved one to the newest; sending pauses at this limit. 180 MB at
1,400 bytes each."""

SKIP_PACKETS_MEAN: Final = 1_024
"""On average one packet number in this many is skipped at random. A peer that acknowledges a
skipped number is lying (RFC 9000, section 21.4)."""

# Trains.

TRAIN_BYTES_MAX: Final = 64_000
TRAIN_PACKETS_MAX: Final = 64
"""Limits of a train, which the kernel splits into datagrams in one call: it takes at most 65,507
bytes, and Linux before 6.9 at most 64 segments (`UDP_MAX_SEGMENTS`; 128 since). Trains close to
65,507 bytes arrive uncut by GSO but not joined by GRO. Datagrams read one by one are joined up to
these limits, too."""

VECTOR_PACKETS_MIN: Final = 4
"""Fewer packets than this are handled one by one, because numpy would cost more than it saves."""

# Keys and handshakes.

RUN_KEYS_MAX: Final = 8
"""Run keys that a master accepts at once. Normally there is one, and two while keys are rotated."""

PACKET_NUMBERS_BITS: Final = 62
"""Bits of a packet number, of the 64 in its field. At ten million packets a second they last for
14,000 years, so nothing handles their end."""

EPOCH_PACKETS_BITS: Final = 24
"""Packets of one key, as a power of two: 16.8 million, 36 seconds at 5 Gbit/s. A key may protect
2^28 packets of 2 KiB (RFC 9001, appendix B.1); ours have up to 8,900 bytes, 4.4 times as many."""

FORGERIES_MAX: Final = 2**36
"""Forged packets in one epoch after which the connection is closed. The chance that a forged packet
opens is then below 2^-57 (RFC 9001, appendix B, with packets of 8,900 bytes). An attacker cannot
reach the limit: 2^36 datagrams take three hours at 5 million a second. With a reachable limit,
anyone able to send datagrams could end connections."""

WORKSPACE_SIZES_MAX: Final = 8
"""Packet sizes for which an endpoint keeps a train buffer, about 64 KiB each; the least recently
used is evicted. A path uses one or two."""

INITS_PER_SECOND: Final = 200
INITS_BURST: Final = 200
"""INITs without a cookie that are processed. Beyond this rate the sender is asked for a cookie. At
15 us for a forged INIT they take 0.3 % of a core, at 100 us for an honest one 2 %."""

SOURCE_INITS_PER_SECOND: Final = 20
SOURCE_INITS_BURST: Final = 40
"""INITs processed from one source, which is an IPv4 address or half an IPv6 one. The burst allows
for a machine on which dozens of workers start at once."""

SOURCES_MAX: Final = 2**16
"""Sources counted at once, about 150 bytes each; the oldest is evicted. With cookies, filling the
table takes as many real addresses."""

RETRIES_MAX: Final = 3
"""Cookies that an initiator accepts for one INIT. A genuine master never sends more."""

COOKIE_SECONDS: Final = 120.0
"""Interval at which the secret behind cookies is renewed. The previous secret remains valid."""

REPLAYS_MAX: Final = 2**16
"""Keys whose last INIT time is remembered, about 150 bytes each; the least recently used is
evicted. Only a holder of the run key can make more keys than that."""

RESETS_PER_SECOND: Final = 500
"""Packets of unknown sessions answered with a RESET: 1 % of a core at 20 us each. After a master
restarts, each worker probes with two packets and then waits twice as long as before. A worker
without an answer loses seconds and holds up the run. A RESET is smaller than the packet it answers,
so it is useless for attacking a third party."""

RESET_DATAGRAM_BYTES_MIN: Final = 48
"""Smaller packets get no RESET. A RESET has 24 bytes, so two hosts that do not know each other's
sessions cannot answer each other's RESETs for ever."""

# Handshake and life of a connection.

HANDSHAKE_TIMER_SECONDS: Final = 0.25
HANDSHAKE_TIMER_SECONDS_MAX: Final = 2.0
"""First interval between repeated INITs, and the limit up to which it doubles."""

INIT_SECONDS_MAX: Final = 5.0
"""Age at which an initiator replaces its INIT. The responder may have answered the old one, the
answer may be lost, and the responder may have forgotten it since."""

HALF_OPEN_MAX: Final = 256
HALF_OPEN_SECONDS_MAX: Final = 10.0
"""INITs answered but not yet followed by a packet, about 2 KiB each with keys and ACCEPT; the
oldest is evicted."""

HALF_OPEN_OF_KEY_MAX: Final = 4
"""Half-open connections of one key; the oldest is evicted. A worker dials once at a time, so these
are its current attempt and abandoned ones. Without keys, one peer may hold them all."""

IDLE_TIMEOUT_SECONDS_MAX: Final = 3_600.0
"""A peer that is silent for an hour is given up."""

STALL_IDLE_TIMEOUTS: Final = 2
"""Idle timeouts without progress of a message after which the connection ends, although the peer
answers. On a path that drops large packets, small ones would keep the connection alive for ever."""

UNFINISHED_IDLE_TIMEOUTS: Final = 16
"""Idle timeouts without a new fragment of a message that has begun, after which its receiver ends
the connection: 8 minutes by default. Otherwise a peer that answers could hold its credit, and the
memory behind it, for ever. An honest sender is far from that. A message that waits goes before all
others after two idle timeouts, and where nothing arrives the sender ends the connection itself
after `STALL_IDLE_TIMEOUTS`, doubled on a long path. The rest is for other messages that wait too,
and for what is under way before them, over TCP up to 4 MiB."""

PROGRESS_CHECK_SECONDS_MIN: Final = 1.0
"""Least time between two checks of whether messages go on; otherwise it is an idle timeout. A check
looks at every message, and a peer may choose an idle timeout of 1 ms."""

CHALLENGE_TRIES_MAX: Final = 3
"""Challenges sent to a new address before it is given up. Each is sent once enough bytes have come
from there."""

RESPONSES_MAX: Final = 2
"""Responses to challenges owed at once. The oldest is dropped; the peer asks for it again."""

AMPLIFICATION_MAX: Final = 1
"""Bytes sent to an unproved address per byte received from it. RFC 9000, section 8.1, allows three,
because of certificates."""

CHALLENGE_DATAGRAM_BYTES: Final = PACKET_HEADER_BYTES + 16 + TAG_BYTES
"""Size of a packet with a CHALLENGE and nothing else."""

CLOSE_COPIES: Final = 3
"""Copies of a CLOSE that are sent, a probe timeout apart, because a CLOSE is not acknowledged."""

REASON_BYTES_MAX: Final = 255
"""Length of the reason in a CLOSE frame: its length field is one byte."""

EVENTS_MAX: Final = 2**16
"""Events waiting for the application. It has to take them after every call, so exceeding this is
our fault and not a peer's."""
