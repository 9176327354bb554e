"""The commands of ``gradwire``, each imported only when it runs.

Commands of other packages, such as ``master``, are entry points of the group ``gradwire.commands``:
the client does not import the server.
"""

import gc
import sys
from pkgutil import resolve_name
from typing import Any, Final, cast

import typer
from typer.core import TyperCommand, TyperGroup

from gradwire_protocol.removed import removal_of

OWN: Final = {
    "run": "gradwire.cli.run:run",
    "demo": "gradwire.cli.demo.command:demo",
    "keygen": "gradwire.cli.keygen:keygen",
    "operate": "gradwire.cli.operate:operate",
    "top": "gradwire.cli.top.command:top",
    "estimate": "gradwire.cli.estimate:estimate_command",
    "doctor": "gradwire.cli.doctor:doctor",
    "warm-up": "gradwire.cli.warm_up:warm_up",
}
"""Functions of the client's own commands."""

RUN_OTHERS: Final = frozenset({"run"})
"""Commands that run another command: its options come behind it, with or without ``--``."""

SUMMARIES: Final = {
    "run": "Start a master and local workers, and show what they print, each line with its rank.",
    "demo": "Train a character transformer with several worker processes, over real UDP.",
    "keygen": "Make a run key, keys of workers from it, or a token for HTTP.",
    "operate": "Give a running master an order.",
    "top": "Show a master's runs and workers, live: speed, loss, states, events.",
    "estimate": "Compute whether a training will scale: seconds of a step, waiting, bytes.",
    "doctor": "Say what is wrong with this machine, or between it and a master, and what to do "
    "about it.",
    "warm-up": "Compile what gradwire needs, so that no start has to wait for it.",
    "master": "Run the master daemon: it lets workers join, keeps the parameters, and relays "
    "updates.",
    "relay": "Run a relay: it lets workers in for a master, and sends them the updates for it.",
}
"""First sentence of each command's docstring: ``gradwire --help`` shows it without an import."""


class Commands(TyperGroup):
    """All commands; it looks for those of other packages only when it needs them."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for name, place in OWN.items():
            self.add_command(DeferredCommand(name, place))

    def get_command(self, ctx: Any, cmd_name: str) -> TyperCommand | None:
        """Return a command, or None without one of this name."""
        if cmd_name not in self.commands:
            self._find_others()
        command = self.commands.get(cmd_name)
        assert command is None or isinstance(command, DeferredCommand)
        return command.load() if command and command.short_help is None else command

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands, in the order of ``--help``."""
        self._find_others()
        return super().list_commands(ctx)

    def _find_others(self) -> None:
        from importlib.metadata import entry_points  # takes longer than all imports above

        for found in sorted(entry_points(group="gradwire.commands"), key=lambda e: e.name):
            self.add_command(DeferredCommand(found.name, f"{found.module}:{found.attr}"))


class Command(TyperCommand):
    """A command that says of a removed option what to use instead."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments, as typer does."""
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            if type(error).__name__ == "NoSuchOption":  # typer exports no name for it
                option = error.option_name  # type: ignore[attr-defined]
                removal = removal_of(option, self.name)
                if removal is not None:
                    ctx.fail(f"{option} was {removal}")
            raise


class DeferredCommand(TyperCommand):
    """A command whose function, ``module:function``, is imported when it runs or shows its help."""

    def __init__(self, name: str, place: str) -> None:
        super().__init__(name, short_help=SUMMARIES.get(name))
        self._place = place

    def make_context(self, info_name: str | None, args: list[str], *rest: Any, **extra: Any) -> Any:
        """Import the command, which parses its arguments and goes on from there."""
        return self.load().make_context(info_name, args, *rest, **extra)

    def load(self) -> TyperCommand:
        """Import the command."""
        alone = typer.Typer(add_completion=False, rich_markup_mode="markdown")
        # What stands behind the command that it runs is that command's.
        settings = {"allow_interspersed_args": self.name not in RUN_OTHERS}
        load = alone.command(self.name, cls=Command, context_settings=settings)
        load(_imported(self._place))
        return cast("TyperCommand", typer.main.get_command(alone))


def _imported(place: str) -> Any:
    """Import a function, without collecting garbage among the imported objects.

    Python would search these several times, which is a fifth of the time a master takes to start.
    """
    if place.partition(":")[0] in sys.modules:
        return resolve_name(place)
    gc.disable()
    try:
        return resolve_name(place)
    finally:
        gc.freeze()
        gc.enable()
