"""`OptimizerStateSharing`: a session's optimizer begins with the state of another worker's.

The state comes before `join` returns, so before the first step. Workers that join later are given
this worker's state, as it is at the end of a step. None of that makes joining fail: if there is no
state, or it does not fit, or does not come in time, the optimizer begins without, and the log says
why.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from gradwire.errors import UsageError
from gradwire.optimizer.averaged import Averaged
from gradwire.optimizer.state import PackedState, StateHeader, UnfitStateError, check_header
from gradwire.participant.feature import Feature
from gradwire.replica.pull import Pull
from gradwire.replica.waits import Procedure, until
from gradwire.target.parameters import Parameters
from gradwire.worker.exchanges.optimizer_state import StateKeeper
from gradwire.worker.membership import Membership
from gradwire.worker.worker import Worker
from gradwire_codecs.arrays import Float32Array
from gradwire_protocol.messages.fields import count_updates
from gradwire_protocol.messages.layout import Layout
from gradwire_protocol.messages.modes.kept_state import KeptState

if TYPE_CHECKING:
    import torch

    from gradwire.optimizer.torch_state import TorchOptimizer

logger = logging.getLogger("gradwire.join")


class OptimizerStateSharing(Feature, StateKeeper):
    """Takes over a state once, and gives copies of its own.

    Parameters
    ----------
    layout : Layout
        Of the run.
    worker : Worker
        It has not dialled yet.
    """

    def __init__(
        self,
        optimizer: "TorchOptimizer",
        layout: Layout,
        membership: Membership,
        worker: Worker,
    ) -> None:
        self._optimizer = optimizer
        self._layout = layout
        self._membership = membership
        self._states = worker.optimizer_states
        self._states.set_keeper(self)
        self._wanted = False
        self._offered = False
        self._warned = False
        self._answered = False
        self._state: PackedState | None = None
        self._reason = ""

    # Joining.

    def take_over(
        self, applying: Pull, deadline: float, clock: Callable[[], float]
    ) -> Procedure[None]:
        """Ask for a state, unless the optimizer has one, and wait for it until the deadline.

        Parameters
        ----------
        applying : Pull
            Gives the replica to a master that needs it while we wait.
        deadline : float
            On the `clock`.
        """
        welcome = self._membership.welcome
        assert welcome is not None
        if welcome.founder:
            return
        name = self._optimizer.name
        if not self._optimizer.is_cold:
            logger.info("the %s keeps the state that it has", name)
            return
        # Before the first step of a run there is no state to miss.
        is_under_way = count_updates(welcome.versions, without=-1) > 0
        level = logging.WARNING if is_under_way else logging.DEBUG
        try:
            state = yield from self._ask(applying, deadline, clock)
            self._optimizer.restore(state)
        except UnfitStateError as error:
            logger.log(level, "the %s begins without the state of another worker: %s", name, error)
        else:
            logger.info(
                "the %s begins with the state of another worker: %d bytes", name, state.nbytes
            )

    def _ask(
        self, applying: Pull, deadline: float, clock: Callable[[], float]
    ) -> Procedure[PackedState]:
        """Return another worker's state, or raise `UnfitStateError` with why there is none."""
        self._optimizer.prepare()
        self._membership.post(self._states.ask)
        membership = self._membership
        tried: tuple[object, int] = None, -1
        with applying.lent(applies=True):
            while not self._answered:
                has_news = partial(self._has_news, tried)
                if not (yield from until(membership, has_news, deadline, clock, self._purpose)):
                    if membership.error is not None:
                        raise membership.error
                    self._membership.post(self._states.give_up)
                    raise UnfitStateError("none came in time")
                if not self._answered:
                    # The connection was lost, and our replica has to be compared.
                    tried = membership.comparison, membership.updates_received
                    applying.pull()
        state, self._state = self._state, None
        if state is None:
            raise UnfitStateError(self._reason)
        return state

    def _purpose(self) -> str:
        return f"another worker to send the state of its {self._optimizer.name}"

    def _has_news(self, tried: tuple[object, int]) -> bool:
        membership = self._membership
        compares = membership.comparison is not None
        return self._answered or (
            compares and tried != (membership.comparison, membership.updates_received)
        )

    # The training half.

    def after_step(self) -> None:
        """Copy the state, if another worker waits for it."""
        if not self._offered:
            self._offered = True
            self._membership.post(self._states.start_giving)
        if not self._wanted:
            return
        self._wanted = False
        try:
            copy = self._optimizer.capture()
        except UnfitStateError as error:
            if not self._warned:
                logger.warning("another worker asked for the state of our optimizer: %s", error)
            self._warned = True
            self._membership.post(self._states.refuse, str(error))
        else:
            self._membership.post(self._states.give, copy)

    def before_finish(self) -> None:
        """Refuse further requests: no step copies the state any more."""
        self._membership.post(self._states.stop_giving, "it has made its last step")

    # The network half.

    def unpacked(self, header: StateHeader) -> PackedState:
        """Return where a state is put together; raise `UnfitStateError` if it does not fit."""
        check_header(header, self._layout)
        self._optimizer.check(header)
        return PackedState(header, self._layout)

    def on_state_wanted(self) -> None:
        """Copy the state at the end of the next step."""
        self._wanted = True

    def on_state_not_wanted(self) -> None:
        """Make no copy: no worker waits for it any more."""
        self._wanted = False

    def on_state(self, state: PackedState | None, reason: str) -> None:
        """Take the state that was asked for; None, with a reason, if there is none."""
        self._state, self._reason = state, reason
        self._answered = True
        self._membership.notify()


def shared_optimizer(
    optimizer: "torch.optim.Optimizer | None", parameters: Parameters
) -> "TorchOptimizer":
    """Return an optimizer as one whose state is shared; `UsageError` if `join` was given none."""
    if optimizer is None:
        raise UsageError(
            "share_optimizer_state=True needs the optimizer: join(model, optimizer=optimizer, …)"
        )
    return torch_state(optimizer, parameters)


def torch_state(optimizer: "torch.optim.Optimizer", parameters: Parameters) -> "TorchOptimizer":
    """Return what copies the state of an optimizer, which changes these parameters."""
    # Imported here: only a script that passes an optimizer has imported torch.
    from gradwire.optimizer.torch_state import TorchOptimizer
    from gradwire.target.torch_parameters import TorchParameters

    assert isinstance(parameters, TorchParameters)
    return TorchOptimizer(optimizer, parameters.tensors, parameters.layout)


def kept_by(optimizer: "TorchOptimizer") -> KeptState:
    """Return what an optimizer keeps; `UsageError` if that cannot be averaged."""
    try:
        optimizer.prepare()
        return optimizer.kept()
    except UnfitStateError as error:
        raise UsageError(f"optimizer_state=True: {error}") from None


def averaged_state(
    optimizer: "torch.optim.Optimizer",
    parameters: Parameters,
    kept: KeptState,
    span: slice,
    elements: Float32Array,
    quantum: float,
) -> Averaged:
    """Return the state of an optimizer as elements of a replica, which has that of `kept`.

    `UsageError` if this one keeps something else. The other parameters are those of `Averages`.
    """
    # Imported here: only a script that passes an optimizer has imported torch.
    from gradwire.optimizer.torch_averaged import AveragedState

    state = torch_state(optimizer, parameters)
    ours = kept_by(state)
    if ours != kept:
        raise UsageError(
            f"this run averages the state of {kept}, and our optimizer is {ours}: train with the "
            "same one, or begin a run of another name"
        )
    return AveragedState(state, kept, parameters.layout, span, elements, quantum)
