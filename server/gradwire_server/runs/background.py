"""What works beside the event loop for masters, so that they neither wait nor do I/O."""

from collections.abc import Callable
from typing import Protocol

from gradwire_server.checkpoints.writer import CheckpointWriter
from gradwire_server.state.run import Run
from gradwire_server.updates.decoding import Decoder


class Background(Protocol):
    """Makes a decoder and a writer; `on_ready` is called with the time when one has an outcome."""

    def decoder(self, on_ready: Callable[[float], None]) -> Decoder | None:
        """Return a decoder; None for one that decodes at once."""

    def writer(self, on_ready: Callable[[float], None]) -> CheckpointWriter | None:
        """Return a writer of checkpoints; None for none."""

    def note_over(self, run: Run) -> None:
        """Note that a run is over: nothing is logged in it any more."""


class Foreground:
    """For masters that decode at once, and write no checkpoints."""

    def decoder(self, on_ready: Callable[[float], None]) -> Decoder | None:
        """Return None."""
        return None

    def writer(self, on_ready: Callable[[float], None]) -> CheckpointWriter | None:
        """Return None."""
        return None

    def note_over(self, run: Run) -> None:
        """Do nothing."""
