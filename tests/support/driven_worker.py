"""A worker process that does what it is told, line by line: ``-m support.driven_worker OPTIONS``.

On stdin it reads one JSON object per line, such as ``{"do": "step", "times": 3}``; on stdout it
answers each with one. So a test decides what happens when, and waits for nothing but answers.

`DrivenWorker` is the test's end of it.
"""

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Self

import numpy as np

import gradwire
from support.processes import Running, with_tests
from support.waiting import JOB

ELEMENTS = 20_000
CHANGE = 1e-3


class DrivenWorker:
    """A worker in a process of its own.

    Parameters
    ----------
    master : str
        Address of its master.
    elements : int
        Size of its model.
    prefix : str
        What to put before the command: another program that runs it.
    settings : mapping
        Keywords of `gradwire.join`.
    """

    def __init__(
        self,
        master: str,
        *prefix: str,
        elements: int = ELEMENTS,
        settings: Mapping[str, object] | None = None,
    ) -> None:
        options = json.dumps(
            {"master": master, "elements": elements, "settings": dict(settings or {})}
        )
        self.process = Running(
            [*prefix, sys.executable, "-m", "support.driven_worker", options],
            stdin=subprocess.PIPE,
            env=with_tests(),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.process.end()

    def tell(self, do: str, **arguments: object) -> None:
        """Say what to do; `answer` tells what came of it."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self.process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Return the next answer."""
        line = self.process.read_line("a worker's answer")
        assert line, f"the worker ended with status {self.process.wait()} and no answer"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, do: str, **arguments: object) -> dict[str, Any]:
        """Say what to do, and return what came of it."""
        self.tell(do, **arguments)
        return self.answer()

    def kill(self) -> None:
        """End it without a word."""
        self.process.kill()
        self.process.wait()


def tell_all(workers: Sequence[DrivenWorker], do: str, **arguments: object) -> None:
    """Say to all what to do, so that they do it at once."""
    for worker in workers:
        worker.tell(do, **arguments)


def ask_all(workers: Sequence[DrivenWorker], do: str, **arguments: object) -> list[dict[str, Any]]:
    """Say to all what to do, so that they do it at once; return what came of it."""
    tell_all(workers, do, **arguments)
    return answers_of(workers)


def answers_of(workers: Sequence[DrivenWorker]) -> list[dict[str, Any]]:
    """Return the next answer of each."""
    return [worker.answer() for worker in workers]


def start(
    stack: ExitStack, master: str, n: int, elements: int = ELEMENTS, **settings: object
) -> list[DrivenWorker]:
    """Start workers that end with the stack, and let them join, all at once."""
    workers = [
        stack.enter_context(DrivenWorker(master, elements=elements, settings=settings))
        for _ in range(n)
    ]
    for answer in ask_all(workers, "join"):
        assert "rank" in answer, answer
    return workers


def finish(workers: Sequence[DrivenWorker]) -> list[dict[str, Any]]:
    """Let workers finish at once, with the same bits; return what they say of themselves."""
    ends = ask_all(workers, "finish")
    assert len({end["digest"] for end in ends}) == 1, ends
    assert len({end["parameters"] for end in ends}) == 1, ends
    return ends


def check_applied(ends: Sequence[dict[str, Any]]) -> int:
    """Check that everyone has applied what all others sent; return how many updates that were."""
    sent = [end["updates_sent"] for end in ends]
    assert [end["updates_applied"] for end in ends] == [sum(sent) - own for own in sent]
    return sum(sent)


def main() -> None:
    """Join, and do what stdin says."""
    options = json.loads(sys.argv[1])
    random = np.random.default_rng()
    parameters = random.normal(0, 0.1, options["elements"]).astype(np.float32)
    session: gradwire.Session | None = None
    for line in sys.stdin:
        command = json.loads(line)
        try:
            match command["do"]:
                case "join":
                    settings = {
                        "finish_residual": "send",
                        "join_timeout_seconds": JOB,
                        **options["settings"],
                    }
                    session = gradwire.join(parameters, master=options["master"], **settings)
                    answer: dict[str, Any] = {"rank": session.rank}
                case _ if session is not None:
                    answer = obey(session, parameters, random, command)
                case _:
                    answer = {"error": "no session"}
        except gradwire.GradwireError as error:
            answer = {"error": type(error).__name__, "message": str(error)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def obey(
    session: gradwire.Session,
    parameters: Any,
    random: np.random.Generator,
    command: dict[str, Any],
) -> dict[str, Any]:
    """Do what a command says."""
    match command["do"]:
        case "wait":
            session.wait(command["workers"], timeout=JOB)
        case "step":
            for _ in range(command["times"]):
                parameters += random.normal(0, CHANGE, parameters.size).astype(np.float32)
                session.step()
        case "flood":
            while True:
                parameters += random.normal(0, 0.1, parameters.size).astype(np.float32)
                session.step()
        case "poison":
            parameters[command["at"]] = np.nan
            session.step()
        case "finish":
            session.finish(timeout=JOB)
        case "close":
            session.close()
    stats = session.stats
    return {
        "rank": session.rank,
        "world_size": session.world_size,
        "workers": len(session.workers),
        "transport": session.transport,
        "digest": session.digest(),
        "parameters": parameters.tobytes().hex()[:64],
        "updates_sent": stats.updates_sent,
        "updates_applied": stats.updates_applied,
        "updates_stable": stats.updates_stable,
    }


if __name__ == "__main__":
    main()
