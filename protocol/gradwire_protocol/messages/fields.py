"""Bounds and types shared by the fields of several messages."""

from collections.abc import Mapping
from typing import Annotated, Final, TypeAlias

from gradwire_protocol.messages.kinds import RANK_END, RANKS_MAX
from gradwire_protocol.messages.layout import ELEMENTS_MAX, NAME_CHARACTERS_MAX
from gradwire_protocol.messages.schema import SMALL_BYTES_MAX, blob, integer, mapping, text

SEQUENCE_MAX: Final = 2**32 - 1
"""Updates of one origin. At a hundred a second they last for sixteen months."""

CLOCK_MAX: Final = 2**32 - 1
"""Steps of one worker."""

PACE_MAX: Final = 2**32 - 1
"""Microseconds of one step: an hour and eleven minutes."""

WORKER_NAME_CHARACTERS_MAX: Final = 64
REASON_CHARACTERS_MAX: Final = 1_000
WORKER_ID_BYTES: Final = 16

TERM_MAX: Final = 2**32 - 1
"""Terms of a run. Each new one needs the loss of a master or of its standby."""

ADDRESS_CHARACTERS_MAX: Final = 300
"""Characters of ``host:port``: a name of 253 (RFC 1035, section 2.3.4), brackets and a port."""

ROSTER_BYTES_MAX: Final = SMALL_BYTES_MAX + RANKS_MAX * (4 * WORKER_NAME_CHARACTERS_MAX + 40)

VERSIONS_BYTES_MAX: Final = SMALL_BYTES_MAX + 10 * RANKS_MAX
"""A pair takes 1 byte, a rank at most 3, a sequence at most 5."""

BLOCK_ELEMENTS: Final = 2**18
"""Elements in a block of a snapshot: 1 MiB."""

BLOCKS_MAX: Final = -(-ELEMENTS_MAX // BLOCK_ELEMENTS)
"""Blocks of the largest replica: 8,192."""

DIGEST_BYTES: Final = 8

RANK: Final = integer(0, RANK_END - 1)
_SEQUENCE: Final = integer(0, SEQUENCE_MAX)
_CLOCK: Final = integer(0, CLOCK_MAX)

Rank: TypeAlias = Annotated[int, RANK]
SequenceNumber: TypeAlias = Annotated[int, _SEQUENCE]
Versions: TypeAlias = Annotated[Mapping[int, int], mapping(RANK, _SEQUENCE, RANKS_MAX)]
Clock: TypeAlias = Annotated[int, _CLOCK]
Clocks: TypeAlias = Annotated[Mapping[int, int], mapping(RANK, _CLOCK, RANKS_MAX)]
Position: TypeAlias = Annotated[int, integer(0, 2**63)]
"""In a log: how many updates its master had accepted with it."""
LogId: TypeAlias = Annotated[int, integer(0, 2**64 - 1)]
"""Of a log: the number of its incarnation in the upper half, and a random one."""
Pace: TypeAlias = Annotated[int, integer(0, PACE_MAX)]
RunName: TypeAlias = Annotated[str, text(NAME_CHARACTERS_MAX)]
WorkerName: TypeAlias = Annotated[str, text(WORKER_NAME_CHARACTERS_MAX)]
Reason: TypeAlias = Annotated[str, text(REASON_CHARACTERS_MAX)]
Term: TypeAlias = Annotated[int, integer(0, TERM_MAX)]
HostPort: TypeAlias = Annotated[str, text(ADDRESS_CHARACTERS_MAX)]
WorkerId: TypeAlias = Annotated[bytes, blob(WORKER_ID_BYTES, WORKER_ID_BYTES)]


def count_updates(versions: Mapping[int, int], *, without: int) -> int:
    """Return how many updates a version vector contains, except those of one rank."""
    return sum(sequence for rank, sequence in versions.items() if rank != without)


def raise_to(versions: dict[int, int], others: Mapping[int, int]) -> None:
    """Note that these versions are contained as well: a result may come before an earlier one."""
    for rank, sequence in others.items():
        versions[rank] = max(versions.get(rank, 0), sequence)


def covers(versions: Mapping[int, int], others: Mapping[int, int]) -> bool:
    """Return whether a version vector contains all updates of another one."""
    return all(versions.get(rank, 0) >= sequence for rank, sequence in others.items())
