"""`OrderReader`: asks a master as an operator, by the order ``status``, which has fewer figures."""

import asyncio
import json
from contextlib import suppress
from threading import Thread
from typing import Any, Final

from gradwire.cli.operate import answer_to
from gradwire.cli.top.documents import Document, Documents, as_document, as_documents
from gradwire.cli.top.text import plain
from gradwire.errors import ProtocolError, RefusedError
from gradwire.settings.settings import Settings
from gradwire_protocol.messages.operating.orders import Action, Order

EVERY_SECONDS: Final = 3.0
"""Each order is a connection, and a line in the master's log."""


class OrderReader:
    """Gives one order after the other, each with the deadline of ``gradwire operate``.

    Parameters
    ----------
    settings : Settings
        Where the master is, and the operator's key.
    """

    def __init__(self, settings: Settings) -> None:
        self.place = plain(settings.master)
        self.every_seconds: float = EVERY_SECONDS
        self._settings = settings

    async def read(self, run: str | None, *, details: bool = True) -> Documents:
        """Ask for everything about one run, or all: see `Reader`."""
        del details  # there are none
        text = await self._answer()
        try:
            status = json.loads(text)
        except (ValueError, RecursionError):
            status = None
        if not isinstance(status, dict):
            raise ProtocolError(f"the status of the master at {self.place} is no JSON object")
        found = documents_of(status)
        if run is not None and run not in found.runs:
            names = ", ".join(map(plain, found.runs)) or "none"
            raise RefusedError(
                "order",
                f"the master at {self.place}: no run {plain(run)!r} is in progress; runs: {names}",
            )
        return found

    async def _answer(self) -> str:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[str] = loop.create_future()

        def set_answer(text: str | None, error: BaseException | None) -> None:
            if answer.done():  # nobody waits any more
                return
            if error is None:
                answer.set_result(text or "")
            else:
                answer.set_exception(error)

        def ask() -> None:
            text: str | None = None
            failure: BaseException | None = None
            try:
                text = answer_to(Order(Action.STATUS, "", None), self._settings)
            except BaseException as error:
                failure = error
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(set_answer, text, failure)

        # The event loop would wait at its end for a thread of its own.
        Thread(target=ask, name="gradwire-top-order", daemon=True).start()
        return await answer


def documents_of(status: Document) -> Documents:
    """Return what a status says as the API would say it."""
    runs = as_documents(status.get("runs"))
    found = Documents({**status, "runs": [_line(run) for run in runs]})
    for run in runs:
        name = run.get("name")
        if isinstance(name, str):
            workers = [_worker(each) for each in as_documents(run.get("workers"))]
            found.runs[name] = {**run, "workers": workers}
    return found


def _line(run: Document) -> Document:
    versions = as_document(run.get("versions")).values()
    counts: list[Any] = [each for each in versions if isinstance(each, int)]
    return {
        "name": run.get("name"),
        "mode": run.get("mode"),
        "parameters": run.get("parameters"),
        "updates": sum(counts),
        "finished": run.get("finished"),
        "stopping": run.get("stopping"),
    }


def _worker(worker: Document) -> Document:
    quarantined = worker.get("quarantined") is True
    return {**worker, "state": "quarantined" if quarantined else worker.get("phase")}
