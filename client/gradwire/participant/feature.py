"""`Feature`: what a session does besides sending and applying updates, as hooks of each step.

Sharing buffers, adapting the optimizer, finding loaded checkpoints and bounding staleness are
features. `Participant` knows none of them by name. Its training half calls every hook.
"""

from gradwire.replica.waits import Procedure


class Feature:
    """Does nothing; a subclass overrides the hooks that it needs."""

    def before_push(self) -> None:
        """Prepare a push: the optimizer has stepped, and its change is not encoded yet."""

    def has_trained(self) -> bool:
        """Return whether anything was trained since the last step; if not, nothing is sent."""
        return True

    def after_step(self) -> None:
        """End a step: its change is sent, and the updates of peers are applied.

        Not called while the session is paused.
        """

    def wait(self) -> Procedure[None]:
        """Wait after a step until the next one may begin."""
        yield from ()

    def before_finish(self) -> None:
        """Send what remains, before the worker tells the others that no more comes."""

    def before_leave(self) -> None:
        """Send what remains, before the worker leaves while others train on."""
        self.before_finish()

    def after_finish(self) -> None:
        """Take over the final values: everything that any worker sent has arrived."""

    def on_leave(self) -> None:
        """Undo what was changed outside the session. Called once, also after a failure."""
