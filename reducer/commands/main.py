"""The `reducer` command, a group of subcommands.

Exit codes:

    0     the reducer stopped after draining, all reducers have drained, or the status was shown
    1     an internal error, or a serving process that keeps ending before it serves
    2     wrong usage, settings or files
    3     an address could not be bound
    4     `status`, `top --once` or `drain` got no answer, or was refused
    5     `drain`: a reducer has not ended in time; `serve`: no job came in time (--wait-for-job)
    0-2   `doctor`: good, slow, broken
    any   `run` ends with the exit code of its command
    130   a second signal cut the draining short
"""

from __future__ import annotations

import importlib

import click
from reduction import __version__

#: The command `serve` is the function `serve` in the module `serve`, and so on.
COMMANDS = ("doctor", "drain", "plan", "run", "serve", "status", "top", "trace")


class _Commands(click.Group):
    """Group that imports a command on use, because importing all of them takes 0.3 s at each start of a reducer."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        # For an unknown name click suggests similar loaded commands.
        for name in [cmd_name] if cmd_name in COMMANDS else COMMANDS:
            if name not in self.commands:
                self.add_command(getattr(importlib.import_module(f"reducer.commands.{name}"), name))
        return super().get_command(ctx, cmd_name)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(__version__, prog_name="reducer")
def main() -> None:
    """Sum gradients for PyTorch data-parallel training."""
