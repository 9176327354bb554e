"""`Setup`: what a shard has to know to begin, as it stands on its command line."""

import json
from dataclasses import asdict, dataclass
from typing import Final

from gradwire_protocol import ConnectionConfig

TICK_SECONDS: Final = 2.0
"""How often process 0 asks its shards how they are, and they see whether it did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """What a shard has to know to begin."""

    index: int
    count: int
    parent: int
    """Process 0."""
    loop: str
    log_level: int
    datagrams: int
    """Descriptors: of its UDP socket, its channel, its arena and that of process 0."""
    channel: int
    arena: int
    arena_of_parent: int
    connection: ConnectionConfig
    connections_max: int
    link_rate: float | None
    keyring: int | None
    """Descriptor of a file with the keys, see `keys`; None without. They do not stand here: a
    command line is public."""
    instance: str
    """Of the credentials: the same in all processes."""
    silent_ticks_max: int
    """After so many without a word from process 0 it ends."""

    @property
    def descriptors(self) -> tuple[int, ...]:
        """What it has to inherit."""
        always = self.datagrams, self.channel, self.arena, self.arena_of_parent
        return always if self.keyring is None else (*always, self.keyring)

    def pack(self) -> str:
        """Return it as an argument of the command line."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> "Setup":
        """Return what `pack` has written."""
        plain = json.loads(text)
        return cls(**plain | {"connection": ConnectionConfig(**plain["connection"])})
