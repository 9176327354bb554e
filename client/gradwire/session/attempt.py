"""`attempt`: tries to join a run, from parameters and settings to a session."""

import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from random import SystemRandom
from time import monotonic
from typing import TYPE_CHECKING

from gradwire.errors import NonFiniteError, OutOfRangeError, UnreachableError, UsageError
from gradwire.session.entry import Entry
from gradwire.session.session import Session
from gradwire.settings.credentials import credentials_of
from gradwire.settings.settings import Settings
from gradwire.settings.training import names_in
from gradwire.target.adapters import buffers_of
from gradwire.target.parameters import Parameters
from gradwire.target.with_state import Averaged
from gradwire.threads.lookup import Lookup
from gradwire.threads.network import NetworkThread
from gradwire.threads.waits import Waits
from gradwire.worker.membership import Membership
from gradwire_codecs import NonFiniteError as NotFinite
from gradwire_codecs import OutOfRangeError as OutOfRange
from gradwire_codecs import check_headroom, largest_magnitude, quantum_exponent_for
from gradwire_codecs.arrays import Float32Array
from gradwire_codecs.replica.replica import HEADROOM
from gradwire_protocol.crypto.keys import Role
from gradwire_protocol.messages.admission import CODEC_VERSION, Join
from gradwire_protocol.messages.fields import WORKER_ID_BYTES, WORKER_NAME_CHARACTERS_MAX
from gradwire_protocol.messages.layout import LAYOUT_BYTES_MAX, Layout
from gradwire_protocol.messages.modes.kept_state import ANY, KeptState
from gradwire_protocol.messages.modes.mode import Mode
from gradwire_udp.sockets import Destination

if TYPE_CHECKING:
    import torch

    from gradwire.optimizer.torch_state import TorchOptimizer


def attempt(
    settings: Settings,
    parameters: Parameters,
    target: object,
    optimizer: object,
    lookup: Lookup,
    addresses: Sequence[Destination],
) -> Session:
    """Return a session, or raise why there is none.

    Parameters
    ----------
    optimizer : object
        Changes the parameters of `target`, if it is not None.
    addresses : sequence of Destination
        Of the master, as `lookup` has found it.
    """
    master = lookup.shown(addresses)
    credentials = credentials_of(settings.key, settings.key_file)
    key = None if credentials is None else credentials.key
    observes = key is not None and key.role is Role.OBSERVER
    averages = None
    mode = None if observes else settings.run_mode
    torch_optimizer = None
    if optimizer is not None:
        torch_optimizer = _optimizer_of(optimizer, target)
        averages = partial(_averaged_state, torch_optimizer, parameters)
    if mode is not None and mode.optimizer_state is not None:
        mode = _with_state(mode, torch_optimizer, parameters)
    membership = Membership(parameters.layout.elements)
    entry = Entry(
        settings=settings,
        parameters=parameters,
        request=_request(settings, parameters, mode),
        membership=membership,
        master=master,
        random=SystemRandom().random,
        clock=monotonic,
        target=target,
        optimizer=torch_optimizer,
        averages=averages,
        buffers=buffers_of(target, names_in(settings.averaged_buffers))
        if settings.share_buffers
        else None,
        key_name=None if key is None else key.name,
        observes=observes,
    )
    waits = Waits(membership)
    network = NetworkThread(settings, entry.worker, membership.on_closed, credentials, lookup)
    membership.post = network.call
    try:
        network.start(addresses, start_timeout=settings.start_timeout_seconds)
    except OSError as error:
        raise UnreachableError(f"no socket to reach {master} with: {error}") from None
    try:
        participant = waits.run(entry.enter())
    except BaseException:
        network.call(entry.worker.abort, "joining failed")
        network.stop()
        raise
    return Session(participant, network, waits)


def _request(settings: Settings, parameters: Parameters, mode: Mode | None) -> Join:
    """Return the request for the master."""
    layout = parameters.layout
    request = Join(
        run=settings.run,
        worker_id=os.urandom(WORKER_ID_BYTES),
        name=f"{platform.node()}/{os.getpid()}"[-WORKER_NAME_CHARACTERS_MAX:],
        rank=settings.rank,
        codec=CODEC_VERSION,
        quantum_exponent=_quantum_exponent(settings, parameters),
        layout=layout,
        mode=mode,
    )
    size = len(layout.pack())
    if size > LAYOUT_BYTES_MAX:
        raise UsageError(
            f"the names and shapes of {len(layout.tensors)} parameters take {size} bytes; the "
            f"limit is {LAYOUT_BYTES_MAX}"
        )
    return request


def _quantum_exponent(settings: Settings, parameters: Parameters) -> int:
    """Return the quantum's exponent for our parameters; refuse one that does not fit."""
    vector, layout = parameters.vector, parameters.layout
    try:
        fitting = quantum_exponent_for([largest_magnitude(vector)])
        exponent = settings.quantum_exponent
        if exponent is None:
            exponent = fitting
        check_headroom(vector, exponent)
    except NotFinite as error:
        raise NonFiniteError(f"parameter {layout.locate(error.index)} is {error.value}") from None
    except OutOfRange as error:
        where = f"parameter {layout.locate(error.index)} is {error.value:g}; "
        most = 2.0**31 / HEADROOM
        if abs(error.value) >= most:
            raise OutOfRangeError(
                f"{where}with the largest quantum, 1, magnitudes have to stay below {most:g} to "
                "leave room to grow"
            ) from None
        raise OutOfRangeError(
            f"{where}to leave it room to grow, quantum={settings.quantum} allows magnitudes below "
            f"{error.limit:g}. quantum={2.0**fitting!r} would do"
        ) from None
    return exponent


def _optimizer_of(optimizer: object, target: object) -> "torch.optim.Optimizer":
    """Return the torch optimizer that changes a target, or raise `UsageError`."""
    if "torch" not in sys.modules:
        raise UsageError(
            f"optimizer={type(optimizer).__name__}; it has to be a torch.optim.Optimizer"
        )
    # Imported here: only a script that has such an optimizer has imported torch.
    from gradwire.features.optimizer_control import torch_optimizer

    return torch_optimizer(optimizer, target)


def _with_state(
    mode: Mode, optimizer: "torch.optim.Optimizer | None", parameters: Parameters
) -> Mode:
    """Return a mode that averages optimizers with what ours keeps."""
    if optimizer is None:
        raise UsageError(f"mode {mode} needs the optimizer: join(model, optimizer=optimizer, ...)")
    kept = _torch_state(optimizer, parameters).kept
    if mode.optimizer_state not in (ANY, kept):
        raise UsageError(f"mode {mode}, and ours is {kept}: write optimizer_state=True")
    return replace(mode, optimizer_state=kept)


def _torch_state(optimizer: "torch.optim.Optimizer", parameters: Parameters) -> "TorchOptimizer":
    """Return what copies the state of an optimizer, which changes these parameters."""
    # Imported here: only a script that passes an optimizer has imported torch.
    from gradwire.optimizer.torch_state import TorchOptimizer
    from gradwire.target.torch_parameters import TorchParameters

    assert isinstance(parameters, TorchParameters)
    return TorchOptimizer(optimizer, parameters.tensors, parameters.layout)


def _averaged_state(
    optimizer: "torch.optim.Optimizer",
    parameters: Parameters,
    kept: KeptState,
    model: Layout,
    elements: Float32Array,
    quantum: float,
) -> Averaged:
    """Return the state of an optimizer as elements of a replica, which has that of `kept`.

    `UsageError` if this one keeps something else. The other parameters are those of `Averages`.
    """
    # Imported here: only a script that passes an optimizer has imported torch.
    from gradwire.optimizer.torch_averaged import AveragedState

    state = _torch_state(optimizer, parameters)
    if state.kept != kept:
        raise UsageError(
            f"this run averages the state of {kept}, and our optimizer is {state.kept}: train with "
            "the same one, or begin a run of another name"
        )
    return AveragedState(state, model, elements, quantum)
