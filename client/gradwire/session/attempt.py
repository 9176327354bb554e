"""`Attempt`: one attempt to join a run, from parameters and settings to a session."""

import logging
import os
import platform
import sys
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from random import SystemRandom
from time import monotonic
from typing import TYPE_CHECKING

from gradwire.errors import (
    NonFiniteError,
    OutOfRangeError,
    RefusedError,
    UnreachableError,
    UsageError,
)
from gradwire.features.optimizer_state import (
    averaged_state,
    kept_by,
    shared_optimizer,
    torch_state,
)
from gradwire.features.stats_file import StatsFile
from gradwire.participant.participant import Participant
from gradwire.participant.sharded import ShardedParticipant
from gradwire.replica.waits import Procedure
from gradwire.session.discovery import Found
from gradwire.session.entry import Entry
from gradwire.session.session import Session
from gradwire.session.sharded_entry import enter_all
from gradwire.settings.credentials import credentials_of
from gradwire.settings.settings import Settings
from gradwire.target.adapters import buffers_of
from gradwire.target.parameters import Parameters
from gradwire.target.part import parts_of
from gradwire.threads.network import Destination, NetworkThread
from gradwire.threads.networks import Networks
from gradwire.threads.waits import Waits
from gradwire.worker.membership import Membership
from gradwire_codecs import NonFiniteError as NotFinite
from gradwire_codecs import OutOfRangeError as OutOfRange
from gradwire_codecs import check_headroom, largest_magnitude, quantum_exponent_for
from gradwire_codecs.replica.replica import HEADROOM
from gradwire_protocol.crypto.keys import Role
from gradwire_protocol.messages.admission import (
    CODEC_VERSION,
    VERSION_CHARACTERS_MAX,
    Join,
    RefusalCode,
    split_masters,
)
from gradwire_protocol.messages.fields import WORKER_ID_BYTES, WORKER_NAME_CHARACTERS_MAX
from gradwire_protocol.messages.layout import LAYOUT_BYTES_MAX
from gradwire_protocol.messages.modes.kept_state import ANY
from gradwire_protocol.messages.modes.mode import Mode
from gradwire_udp import resolve_all, show_addresses

if TYPE_CHECKING:
    import torch


logger = logging.getLogger("gradwire.join")


class Attempt:
    """One attempt to join; `optimizer` changes the parameters of `target`, if it is not None.

    `found` is the master, where it was looked up.
    """

    def __init__(
        self,
        settings: Settings,
        parameters: Parameters,
        target: object,
        optimizer: object,
        found: Found | None = None,
    ) -> None:
        self._settings = settings
        self._found = found
        self._parameters = parameters
        self._target = target
        self._credentials = credentials_of(settings.key, settings.key_file, settings.cipher)
        if found is not None:
            found.check_keys(self._credentials)
        self._masters = _masters_at(settings.master if found is None else found.announcement.master)
        key = None if self._credentials is None else self._credentials.key
        self._key_name = None if key is None else key.name
        self._observes = key is not None and key.role is Role.OBSERVER
        self._optimizer = None if optimizer is None else _optimizer_of(optimizer, target)
        self._mode = None if self._observes else self._mode_to_ask_for()
        self._exponent = self._quantum_exponent()
        self._waits = Waits()
        self._networks = Networks()

    def session(self) -> Session:
        """Return the session, or raise why there is none."""
        try:
            participant = self._take_part()
        except RefusedError as error:
            # A master that shares the parameters has named the others.
            if error.code != RefusalCode.OTHER_SHARD or not error.master or len(self._masters) > 1:
                raise
            logger.info("the parameters are shared by the masters at %s", error.master)
            self._masters = _masters_at(error.master)
            self._waits, self._networks = Waits(), Networks()
            participant = self._take_part()
        file = StatsFile.from_environment(
            os.environ,
            participant.welcome.rank,
            self._parameters.layout.elements,
            lambda: participant.stats(self._networks.traffic),
        )
        if file is not None:
            participant.features = [file.beginning, *participant.features, file]
        return Session(participant, self._networks, self._waits)

    def _take_part(self) -> Participant | ShardedParticipant:
        """Take part, or leave nothing behind."""
        try:
            return self._waits.run(self._enter())
        except BaseException:
            self._networks.abort("joining failed")
            self._networks.stop()
            raise

    def _enter(self) -> Procedure[Participant | ShardedParticipant]:
        """Take part in the run of one master, or in those of several."""
        if len(self._masters) == 1:
            return (yield from self._dial(0, self._parameters, self._settings.rank).enter())
        return (
            yield from enter_all(
                parts_of(self._parameters, [weight for _, weight in self._masters]),
                self._dial,
                rank=self._settings.rank,
                observes=self._observes,
            )
        )

    def _dial(self, number: int, part: Parameters, rank: int | None) -> Entry:
        """Begin to dial one of the masters, for a part of the parameters.

        The first master is also the one for all that is not parameters.
        """
        settings, optimizer, is_first = self._settings, self._optimizer, number == 0
        addresses, _ = self._masters[number]
        shared = None
        if is_first and settings.share_optimizer_state and not self._observes:
            shared = shared_optimizer(optimizer, self._parameters)
        averages = None
        if optimizer is not None:
            averages = partial(averaged_state, optimizer, self._parameters)
        membership = Membership(part.layout.elements)
        self._waits.add(membership)
        entry = Entry(
            settings,
            part,
            self._request(number, part, gives_state=shared is not None, rank=rank),
            membership,
            master=show_addresses(addresses),
            random=SystemRandom().random,
            clock=monotonic,
            target=self._target if is_first else None,
            optimizer=optimizer,
            shared_optimizer=shared,
            averages=averages,
            buffers=buffers_of(self._target) if is_first and settings.share_buffers else None,
            key_name=self._key_name,
            observes=self._observes,
            whole=None if part is self._parameters else self._parameters,
            is_first=is_first,
        )
        watch = None if self._found is None else self._found.watch(number)
        network = NetworkThread(
            settings,
            entry.worker,
            membership,
            self._credentials,
            on_redial=None if watch is None else watch.request,
        )
        if watch is not None:
            watch.on_moved = partial(network.call, entry.worker.go_to)
        membership.post = network.call
        try:
            network.start(
                addresses,
                start_timeout=settings.start_timeout_seconds,
                others=() if watch is None else watch.others,
            )
        except OSError as error:
            master = show_addresses(addresses)
            raise UnreachableError(f"no socket to reach {master} with: {error}") from None
        self._networks.add(network)
        return entry

    def _mode_to_ask_for(self) -> Mode | None:
        """Return the mode to ask for, with what the optimizer keeps if that is to be averaged."""
        mode, optimizer = self._settings.run_mode, self._optimizer
        if mode is None or mode.optimizer_state is None:
            return mode
        if optimizer is None:
            raise UsageError(
                f"mode {mode} needs the optimizer: join(model, optimizer=optimizer, ...)"
            )
        kept = kept_by(torch_state(optimizer, self._parameters))
        if mode.optimizer_state not in (ANY, kept):
            raise UsageError(f"mode {mode}, and ours is {kept}: write optimizer_state=True")
        return replace(mode, optimizer_state=kept)

    def _request(
        self, number: int, part: Parameters, *, gives_state: bool, rank: int | None
    ) -> Join:
        """Return the request for a master."""
        settings, layout = self._settings, part.layout
        request = Join(
            run=settings.run,
            worker_id=os.urandom(WORKER_ID_BYTES),
            name=f"{platform.node()}/{os.getpid()}"[-WORKER_NAME_CHARACTERS_MAX:],
            rank=rank,
            codec=CODEC_VERSION,
            quantum_exponent=self._exponent,
            layout=layout,
            gives_state=gives_state,
            mode=self._mode,
            shard=number,
            shards=len(self._masters),
            version=version("gradwire")[:VERSION_CHARACTERS_MAX],
        )
        size = len(layout.pack())
        if size > LAYOUT_BYTES_MAX:
            raise UsageError(
                f"the names and shapes of {len(layout.tensors)} parameters take {size} "
                f"bytes; the limit is {LAYOUT_BYTES_MAX}"
            )
        return request

    def _quantum_exponent(self) -> int:
        """Return the quantum's exponent for our parameters; refuse one that does not fit."""
        vector = self._parameters.vector
        layout = self._parameters.layout
        try:
            fitting = quantum_exponent_for([largest_magnitude(vector)])
            exponent = self._settings.quantum_exponent
            if exponent is None:
                exponent = fitting
            check_headroom(vector, exponent)
        except NotFinite as error:
            raise NonFiniteError(
                f"parameter {layout.locate(error.index)} is {error.value}"
            ) from None
        except OutOfRange as error:
            where = f"parameter {layout.locate(error.index)} is {error.value:g}; "
            most = 2.0**31 / HEADROOM
            if abs(error.value) >= most:
                raise OutOfRangeError(
                    f"{where}with the largest quantum, 1, magnitudes have to stay below {most:g} "
                    "to leave room to grow"
                ) from None
            raise OutOfRangeError(
                f"{where}to leave it room to grow, quantum={self._settings.quantum} allows "
                f"magnitudes below {error.limit:g}. quantum={2.0**fitting!r} would do"
            ) from None
        return exponent


def _masters_at(text: str) -> list[tuple[list[Destination], int]]:
    """Return the addresses of each master, and its weight."""
    return [(resolve_all(each.address), each.weight) for each in split_masters(text)]


def _optimizer_of(optimizer: object, target: object) -> "torch.optim.Optimizer":
    """Return the torch optimizer that changes a target, or raise `UsageError`."""
    if "torch" not in sys.modules:
        raise UsageError(
            f"optimizer={type(optimizer).__name__}; it has to be a torch.optim.Optimizer"
        )
    # Imported here: only a script that has such an optimizer has imported torch.
    from gradwire.features.optimizer_control import torch_optimizer

    return torch_optimizer(optimizer, target)
