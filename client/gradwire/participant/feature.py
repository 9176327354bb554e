"""`Feature`: what a session does besides sending and applying, at the same points of a loop.

Buffers, the optimizer's momentum and state, a bound on staleness: each is a part of its own, and
`Participant` knows none of them by name. All methods are called in its training half.
"""

from gradwire.replica.waits import Procedure


class Feature:
    """Does nothing; a part overrides what it needs."""

    def before_push(self) -> None:
        """Do what has to be done after the optimizer's step and before its change is encoded."""

    def trained(self) -> bool:
        """Return whether anything was trained since the last step; if not, nothing is sent."""
        return True

    def stepped(self) -> None:
        """Do what is due after a step: its change is sent, and what peers sent is applied.

        Not called while the session is paused.
        """

    def hold(self) -> Procedure[None]:
        """Wait after a step, where the next one may not begin yet."""
        yield from ()

    def finishing(self) -> None:
        """Send the last there is to send, before the others are told that no more comes."""

    def finished(self) -> None:
        """Take over what everybody ends with: everything that was sent has arrived."""

    def left(self) -> None:
        """Give back what was changed outside the session. Called once, also after a failure."""
