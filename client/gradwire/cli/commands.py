"""The commands of ``gradwire``, each imported when it is asked for.

Those of other parts, such as ``master``, are found by the entry points of the group
``gradwire.commands``: the client does not import the server.
"""

import gc
import sys
from pkgutil import resolve_name
from typing import Any, Final, cast

import typer
from typer.core import TyperCommand, TyperGroup

OWN: Final = {
    "run": "gradwire.cli.run:run",
    "demo": "gradwire.cli.demo.command:demo",
    "keygen": "gradwire.cli.keygen:keygen",
    "operate": "gradwire.cli.operate:operate",
    "estimate": "gradwire.cli.estimate.command:estimate_command",
    "doctor": "gradwire.cli.doctor.command:doctor",
}
"""Where the functions of the client's own commands are."""

SUMMARIES: Final = {
    "run": "Start a master and local workers, and show what they print, each line with its rank.",
    "demo": "Train a character transformer with several worker processes, over real UDP.",
    "keygen": "Make a run key, or keys of workers from it.",
    "operate": "Give a running master an order.",
    "estimate": "Say whether a training will scale: how well, what limits it, and what to change.",
    "doctor": "Say what is wrong with this machine, or between it and a master, and what to do "
    "about it.",
    "master": "Run the master daemon: it lets workers join, keeps the parameters, and relays "
    "updates.",
}
"""What ``gradwire --help`` shows without importing the command: how its docstring begins."""


class Commands(TyperGroup):
    """Every command there is; those of other parts are looked for when they are needed."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, place in OWN.items():
            self.add_command(DeferredCommand(name, place))

    def get_command(self, ctx: Any, cmd_name: str) -> TyperCommand | None:
        """Return a command, or None where there is none of this name."""
        if cmd_name not in self.commands:
            self._find_others()
        command = self.commands.get(cmd_name)
        assert command is None or isinstance(command, DeferredCommand)
        return command.load() if command and command.short_help is None else command

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands, in the order in which they are shown."""
        self._find_others()
        return super().list_commands(ctx)

    def _find_others(self) -> None:
        from importlib.metadata import entry_points  # takes longer than all that is above

        for found in sorted(entry_points(group="gradwire.commands"), key=lambda e: e.name):
            self.add_command(DeferredCommand(found.name, f"{found.module}:{found.attr}"))


class DeferredCommand(TyperCommand):
    """A command that is imported when it is to run, or to show its help.

    Parameters
    ----------
    name : str
    place : str
        Where its function is: ``module:function``.
    """

    def __init__(self, name: str, place: str) -> None:
        super().__init__(name, short_help=SUMMARIES.get(name))
        self._place = place

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **extra: Any) -> Any:
        """Have the command itself take its arguments, and whatever comes after."""
        return self.load().make_context(info_name, args, *rest, **extra)

    def load(self) -> TyperCommand:
        """Import the command."""
        alone = typer.Typer(add_completion=False, rich_markup_mode="markdown")
        alone.command(self.name)(_imported(self._place))
        return cast("TyperCommand", typer.main.get_command(alone))


def _imported(place: str) -> Any:
    """Import a function, and keep all that the import makes out of the search for garbage.

    Python would search it several times over, which is a fifth of what starting a master takes.
    """
    if place.partition(":")[0] in sys.modules:
        return resolve_name(place)
    gc.disable()
    try:
        return resolve_name(place)
    finally:
        gc.freeze()
        gc.enable()
