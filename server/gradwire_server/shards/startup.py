"""`Setup`: the configuration of a shard, passed on its command line."""

import json
from dataclasses import asdict, dataclass
from typing import Final

from gradwire_protocol import ConnectionConfig

TICK_SECONDS: Final = 2.0
"""How often process 0 asks its shards for figures, and shards check that it does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The configuration of a shard."""

    index: int
    count: int
    """Number of processes, process 0 included."""
    parent: int
    """Process id of process 0."""
    loop: str
    log_level: int
    datagrams: int
    """This and the next three are descriptors: UDP socket, channel, arena, arena of process 0."""
    channel: int
    arena: int
    arena_of_parent: int
    connection: ConnectionConfig
    connections_max: int
    link_rate: float | None
    keyring: int | None
    """Descriptor of a file with the keys, see `keys`; None without keys. The keys themselves are
    not here, because a command line is public."""
    instance: str
    """`Credentials.instance`, the same in all processes."""
    silent_ticks_max: int
    """The shard ends after so many ticks without a record from process 0."""

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The descriptors that the shard has to inherit."""
        always = self.datagrams, self.channel, self.arena, self.arena_of_parent
        return always if self.keyring is None else (*always, self.keyring)

    def pack(self) -> str:
        """Return the setup as an argument of the command line."""
        return json.dumps(asdict(self))

    @classmethod
    def parse(cls, text: str) -> "Setup":
        """Return the setup of `pack`."""
        plain = json.loads(text)
        return cls(**plain | {"connection": ConnectionConfig(**plain["connection"])})
