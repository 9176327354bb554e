"""`Rig`: a participant whose network half is played by hand, for tests of the training half."""

from typing import Any

import numpy as np

from gradwire.participant.participant import Participant
from gradwire.replica.waits import Procedure, Wait
from gradwire.settings.settings import Settings
from gradwire.target.parameters import NumpyParameters
from gradwire.worker.membership import Membership
from gradwire.worker.sums import Sum
from gradwire.worker.worker import Worker
from gradwire_codecs import LocalFeedback, Replica, encode
from gradwire_protocol.messages.admission import CODEC_VERSION, Join, Peer
from gradwire_protocol.messages.fields import WORKER_ID_BYTES
from gradwire_protocol.messages.layout import Layout, Tensor
from gradwire_protocol.messages.updates import Span
from support.peer import welcome

THRESHOLD = 0.5


class Rig:
    """A worker of rank 1 beside another one, live, with parameters that are zero.

    Parameters
    ----------
    elements : int
    observes : bool
    **settings
        Of its session.
    """

    def __init__(self, elements: int = 4, *, observes: bool = False, **settings: Any) -> None:
        self.now = 1000.0
        self.posted: list[tuple[str, tuple[Any, ...]]] = []
        """What the network half was asked to do: the name of the method, and its arguments."""
        layout = Layout((Tensor("array", (elements,)),))
        self.membership = Membership(elements)
        self.membership.post = lambda function, *arguments: self.posted.append(
            (function.__name__, arguments)
        )
        self.membership.on_welcome(
            welcome(
                1, layout, {0: 7}, sequence=5,
                roster=(Peer(0, "zero", False), Peer(1, "one", False)),
            )
        )  # fmt: skip
        self.membership.on_live(None)
        self.parameters = np.zeros(elements, np.float32)
        join = Join(None, bytes(WORKER_ID_BYTES), "one", None, CODEC_VERSION, -24, layout)
        self.participant = Participant(
            settings=Settings(
                **{
                    "master": "nowhere",
                    "threshold": THRESHOLD,
                    "shake_up_steps": 0,
                    "finish_residual": "send",
                    "staleness_bound": "off",
                    **settings,
                }
            ),
            parameters=NumpyParameters(self.parameters),
            feedback=LocalFeedback(self.parameters, Replica.zeros(elements)),
            membership=self.membership,
            worker=Worker(join, self.membership, "nowhere", random=lambda: 0.5),
            clock=lambda: self.now,
            observes=observes,
        )

    def play(self, procedure: Procedure[Any]) -> Any:
        """Play a procedure that does not wait; return what it returns."""
        try:
            wait = next(procedure)
        except StopIteration as end:
            return end.value
        raise AssertionError(f"it waits until {wait.deadline}")

    def wait_of(self, procedure: Procedure[Any]) -> Wait:
        """Play a procedure until it waits; return for what."""
        return next(procedure)

    def hear(self, *values: float, sequence: int = 8) -> None:
        """Let an update of the other worker come in."""
        change = np.array(values, np.float32)
        [body] = encode(change, Replica.zeros(change.size), threshold=THRESHOLD)
        span = Span(sequence - 1, {0: sequence}, 1, 1, {0: 5})
        self.membership.on_entries(Sum(sequence, [body], span, {0: sequence - 1}))

    def pushed(self) -> list[int]:
        """Return the sequences of the updates that were handed over."""
        return [
            update.sequence
            for name, arguments in self.posted
            if name == "push"
            for update in arguments[0]
        ]
