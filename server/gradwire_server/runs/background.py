"""What works beside the event loop for masters, so that they neither wait nor do I/O."""

from collections.abc import Callable

from gradwire_server.checkpoints.writer import CheckpointWriter
from gradwire_server.updates.decoding import Decoder


class Background:
    """Makes a decoder and a writer; `on_ready` is called with the time when one has an outcome.

    As it is here, masters decode at once, and write no checkpoints.
    """

    def decoder(self, on_ready: Callable[[float], None]) -> Decoder | None:
        """Return a decoder; None for one that decodes at once."""
        return None

    def writer(self, on_ready: Callable[[float], None]) -> CheckpointWriter | None:
        """Return a writer of checkpoints; None for none."""
        return None
