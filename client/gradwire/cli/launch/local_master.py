"""`gradwire.local_master`: a master of this process's own, for notebooks and drivers of clusters.

It runs as a child process, so that neither the event loop of a notebook nor Python's lock is in its
way. A thread of ours starts it and stays: the system ends the child when the *thread* ends that has
started it, so it must be none of the caller's.
"""

import asyncio
import atexit
import logging
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Final

from gradwire.cli.launch.master import Master, local_keys, operator_token
from gradwire.cli.launch.processes import how
from gradwire.errors import UsageError
from gradwire_protocol.crypto.keys import IssuingKey, Role, RunKey, WorkerKey
from gradwire_udp.files.keys import read_run_keys

logger = logging.getLogger("gradwire.local_master")

ROLES: Final = {"worker": Role.WORKER, "observer": Role.OBSERVER}


class LocalMaster(AbstractContextManager["LocalMaster"]):
    """A master that this process has started; `gradwire.local_master` returns it.

    As a context manager it ends the master with the block.

    Parameters
    ----------
    listen, http : str
        ``host:port``, as `local_master` takes them.
    key_file : path, optional
        With the run key.
    options : sequence of str
        More options of ``gradwire master``.
    """

    def __init__(
        self, listen: str, http: str, key_file: Path | None, options: Sequence[str]
    ) -> None:
        with ExitStack() as stack:
            run_key_file, _ = stack.enter_context(local_keys(0, key_file))
            self.run_key: RunKey = read_run_keys(run_key_file)[0]
            """The key that all others follow from."""
            token_file, token = stack.enter_context(operator_token())
            self.http_token: Final = token
            """With it, people and programs give orders at `http`."""
            options = ["--http-operator-token-file", str(token_file), *options]
            log = partial(logger.warning, "%s")
            self._master = Master(listen, http, run_key_file, log, logger.info, options)
            self._started: Future[None] = Future()
            self._loop = asyncio.new_event_loop()
            self._to_end = self._loop.create_future()
            self._thread = Thread(target=self._run, name="gradwire-local-master", daemon=True)
            stack.callback(self._end_thread)
            self._thread.start()
            self._started.result()
            self._stack = stack.pop_all()
        atexit.register(self.close)

    @property
    def address(self) -> str:
        """``host:port``, for `gradwire.join`."""
        return self._master.address

    @property
    def http(self) -> str | None:
        """``host:port`` of what it serves over HTTP; None for nothing."""
        return self._master.http

    @property
    def pid(self) -> int:
        """Process id of the master."""
        return self._master.child.pid

    @property
    def is_running(self) -> bool:
        """Whether the master has not ended."""
        return not self._master.child.over.done()

    def key(self, name: str, role: str = "worker") -> WorkerKey:
        """Return a key for one process: ``gradwire.join(..., key=master.key("one"))``.

        A master has one connection for each key, the newest. So every process needs a name of its
        own. `role` is "worker" or "observer".

        Raises
        ------
        UsageError
            If there is no such role.
        """
        return self.run_key.worker_key(name, _role(role))

    def issuing_key(self, role: str = "worker") -> IssuingKey:
        """Return a key from which the keys of one role follow, and no others.

        For processes that are started elsewhere, each of which makes a key of its own of it:
        ``gradwire.join(..., key=issuing_key)``, or as text, `IssuingKey.format`.

        Raises
        ------
        UsageError
            If there is no such role.
        """
        return self.run_key.issuing_key(_role(role))

    def close(self) -> None:
        """End the master, with SIGTERM and, where that does not help, SIGKILL. Can be repeated."""
        atexit.unregister(self.close)
        self._stack.close()

    def __exit__(self, *_: object) -> None:
        """End the master."""
        self.close()

    # Private.

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        try:
            async with self._master:
                self._started.set_result(None)
                over = self._master.child.over
                await asyncio.wait((over, self._to_end), return_when=asyncio.FIRST_COMPLETED)
                if not self._to_end.done():
                    logger.error("the master of this process %s", how(over.result()))
        except BaseException as error:
            self._started.set_exception(error)

    def _end_thread(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._to_end.cancel)
            self._thread.join()


def _role(name: str) -> Role:
    if name not in ROLES:
        raise UsageError(f"role={name!r}; there are {', '.join(ROLES)}")
    return ROLES[name]


def local_master(
    *,
    listen: str = "127.0.0.1:0",
    http: str = "off",
    key_file: str | Path | None = None,
    options: Sequence[str] = (),
) -> LocalMaster:
    """Start a master that ends with this process, and wait until workers can join.

    For notebooks, and for programs that start workers elsewhere. It has a key of its own.

    Parameters
    ----------
    listen : str
        ``host:port``; port 0 is a free one. Other machines reach it only at an address of this
        one's network.
    http : str
        Where it serves HTTP, or ``"off"``; orders take `LocalMaster.http_token`.
    key_file : path, optional
        A run key; without it, a new one.
    options : sequence of str
        More options of ``gradwire master``, such as ``["--workers-max", "200"]``.

    Returns
    -------
    LocalMaster
        With `address` and `key(name)`; a context manager.

    Raises
    ------
    GradwireError
        If the master ends instead of starting, such as where the port is in use: with its last
        words.
    DeadlineError
        If it does not start in a minute.

    Examples
    --------
    ::

        with gradwire.local_master() as master:
            with gradwire.join(model, master=master.address, key=master.key("one")) as session:
                ...
    """
    return LocalMaster(listen, http, None if key_file is None else Path(key_file), options)
