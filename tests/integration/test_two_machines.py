"""README's way to train on two machines, between two network namespaces."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.namespaces import Machine, can_have_machines, two_machines
from support.processes import Running

REPOSITORY = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.skipif(not can_have_machines(), reason="needs the right to make namespaces"),
]


@pytest.fixture
def machines() -> Iterator[tuple[Machine, Machine]]:
    with two_machines() as pair:
        yield pair


def commands_of_the_readme() -> list[str]:
    """Return the commands that README's section on two machines tells to type."""
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    section = readme.split("## On two machines")[1].split("\n## ")[0]
    blocks = re.findall(r"```console\n(.*?)```", section, re.DOTALL)
    lines = "".join(blocks).splitlines()
    return [line.split("$ ", 1)[1] for line in lines if "$ " in line]


def test_the_instructions_of_the_readme_work(
    machines: tuple[Machine, Machine], tmp_path: Path
) -> None:
    one, _ = machines
    *key_commands, master_command, worker_command = [
        command.replace("gradwire ", f"{sys.executable} -m gradwire ", 1)
        .replace("10.0.2.4", one.address)
        .replace("python docs", f"{sys.executable} {REPOSITORY}/docs")
        for command in commands_of_the_readme()
    ]
    for command in key_commands:
        subprocess.run(["sh", "-c", command], check=True, cwd=tmp_path)

    with ExitStack() as stack:

        def start(machine: Machine, command: str) -> Running:
            in_shell = [*machine.prefix, "sh", "-c", f"exec {command}"]
            return stack.enter_context(Running(in_shell, cwd=tmp_path))

        master = start(one, master_command)
        announcement = json.loads(master.read_line("the announcement"))
        workers = [
            start(machine, f"env {command} --steps 30")
            for machine, command in zip(
                machines,
                (worker_command, worker_command.replace("one.key", "two.key")),
                strict=True,
            )
        ]
        outputs = [worker.communicate()[0] for worker in workers]

    assert announcement["master"].endswith(":40123")
    assert [worker.returncode for worker in workers] == [0, 0]
    replicas = [re.findall(r"replica (\w{16})", output) for output in outputs]
    assert len(replicas[0]) == 1
    assert replicas[0] == replicas[1]
