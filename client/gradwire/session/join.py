"""`join`: from a model to a session that takes part in a run."""

import logging
import os
import warnings
from inspect import Parameter, Signature, signature
from os import PathLike
from threading import Lock, Timer
from time import monotonic
from typing import Final, Never, Unpack
from weakref import WeakKeyDictionary

from gradwire.errors import GradwireWarning, UsageError
from gradwire.session.attempt import attempt
from gradwire.session.session import Session
from gradwire.settings.launchers import launched
from gradwire.settings.settings import SettingKeywords, Settings, given_settings
from gradwire.target.adapters import identities_of, parameters_of
from gradwire.target.data_parallel import stop_averaging
from gradwire.threads import console
from gradwire.threads.lookup import Lookup
from gradwire.threads.waits import SILENT_SECONDS
from gradwire_codecs import warm_up
from gradwire_codecs.kernels.compiled import cache_folder
from gradwire_codecs.warm_up import warm_up_rest
from gradwire_protocol.settings import declared_settings

logger = logging.getLogger("gradwire.join")

_joined: Final[WeakKeyDictionary[Session, frozenset[int]]] = WeakKeyDictionary()
"""What the sessions of this process train."""

_joined_lock: Final = Lock()


def join(
    target: object,
    *misplaced: Never,
    optimizer: object = None,
    config: str | PathLike[str] | None = None,
    **settings: Unpack[SettingKeywords],
) -> Session:
    """Take part in a run.

    The parameters of the first worker to join start the run. Every later worker's parameters are
    replaced by the run's current ones. Returns when that is done. With an observer's key, the
    session only receives: see `Session`.

    Parameters
    ----------
    target : torch.nn.Module, list of torch.Tensor, or ndarray of dtype float32
        What is trained, in place. Tensors of dtype float32 are moved into one block of memory; they
        stay the same objects, each with a storage of its own. If all are on one GPU, the search
        for what to send runs there, too.
    optimizer : torch.optim.Optimizer, optional
        What changes the target. Its momentum and learning rate are then adapted as the settings
        `momentum` and `scale` say, only during its steps: the values in its `param_groups` stay.
    config : path, optional
        TOML file; its table ``[session]`` may hold every setting below.
    **settings
        The address of the master, and all other settings: see `Settings`, which also says where
        they can be set instead.

    Returns
    -------
    Session

    Raises
    ------
    UsageError
        If target, settings or key are invalid. `NonFiniteError` and `OutOfRangeError` are
        subclasses.
    UnreachableError
        If the master's host is not known, or no master answers there.
    RefusedError
        If the master refuses this process: it has another model, the run has another name, or too
        many workers take part; an observer, if there is no run; any process, while an operator
        drains the master.
    VersionMismatchError
        If the master speaks another version of the protocol.
    DeadlineError
        If joining takes longer than `join_timeout_seconds`.

    Examples
    --------
    ::

        with gradwire.join(model, optimizer=optimizer, master="10.0.2.4:40123") as session:
            for inputs, targets in loader:
                optimizer.zero_grad()
                loss_function(model(inputs), targets).backward()
                optimizer.step()
                session.step()
    """
    console.show_causes_first()
    if misplaced:
        raise UsageError(
            f"join() takes the target alone by position, and was given {len(misplaced)} more, the "
            f"first one of type {type(misplaced[0]).__name__}: pass them by name, as in "
            "join(model, optimizer=optimizer)"
        )
    keywords, overruled = launched(settings, os.environ)
    given = given_settings(keywords, os.environ, config)
    resolved = Settings(**given)
    lookup = Lookup(resolved.master)
    identities = identities_of(target)
    _check_not_joined(identities)
    console.set_up(resolved.log_level)
    if overruled is not None:
        logger.warning("%s", overruled)
    _warn_of_parameters(target)
    parameters = parameters_of(target)
    stop_averaging(target)
    _compile_kernels(resolved)
    found = lookup.first(resolved.connect_timeout_seconds, resolved.start_timeout_seconds)
    resolved = resolved.with_announced(found.settings, given, resolved.master)
    session = attempt(resolved, parameters, target, optimizer, lookup, found.destinations)
    with _joined_lock:
        _joined[session] = identities
    return session


# So that `help` and notebooks show every setting by its name.
join.__signature__ = Signature(  # type: ignore[attr-defined]
    [
        *(
            p
            for p in signature(join).parameters.values()
            if p.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
        ),
        *(
            Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=each.annotation | None)
            for name, each in declared_settings(Settings).items()
        ),
    ]
)


def _check_not_joined(identities: frozenset[int]) -> None:
    """Refuse a target that an open session trains: it would take part twice, as two workers.

    In a fork, the parent's session lets go of it.
    """
    with _joined_lock:
        joined = list(_joined.items())
    for session, others in joined:
        if not identities & others:
            continue
        if session.is_inherited:
            session.close()
        elif session.is_open:
            raise UsageError(
                f"this target takes part already, as rank {session.rank} of run {session.run!r}: "
                "join once, and finish() or close() that session before joining again"
            )


def _warn_of_parameters(target: object) -> None:
    """Warn of a module of which no optimizer can change anything, or that has more digits."""
    parameters = getattr(target, "parameters", None)
    if not callable(parameters):
        return
    trained = [parameter.requires_grad for parameter in parameters()]
    if trained and not any(trained):
        warnings.warn(
            f"none of the {len(trained)} parameters of this {type(target).__name__} requires a "
            "gradient: it trains nothing, unless the script changes them without one. "
            "requires_grad_(True) lets an optimizer train them",
            GradwireWarning,
            stacklevel=3,
        )
    if any(str(parameter.dtype) == "torch.float64" for parameter in parameters()):
        logger.warning(
            "this model has parameters of float64, and what workers share has the digits of "
            "float32: where others change a parameter, its further digits are lost"
        )


def _compile_kernels(settings: Settings) -> None:
    """Compile the kernels now, or load them from the cache: no training step waits for it.

    Where the run has rounds, and only the master knows it, the first round compiles theirs.
    """
    mode = settings.run_mode
    needs_rest = settings.feedback != "local" or (mode is not None and mode.has_rounds)
    folder = cache_folder()
    kept = f"kept in {folder}" if folder else "not kept: no folder can be written to"
    text = "compiling the codec for this processor, once, here or in another process; the result is"
    notice = Timer(SILENT_SECONDS, logger.info, (f"{text} %s", kept))
    began = monotonic()
    notice.start()
    try:
        warm_up()
        if needs_rest:
            warm_up_rest()
    finally:
        notice.cancel()
    if monotonic() - began > SILENT_SECONDS:
        logger.info("compiled the codec in %.1f s", monotonic() - began)
