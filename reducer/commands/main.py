"""The `reducer` command, a group of subcommands.

Exit codes:

    0     the reducer stopped after draining, all reducers have drained, or the status was shown
    1     an error inside, or a serving process that ends again and again before it serves
    2     wrong usage, settings or files
    3     an address could not be bound
    4     `status`, `top --once` or `drain` got no answer, or was refused
    5     a reducer that `drain` waits for has not ended in time
    0-2   `doctor`: good, slow, broken
    any   `run` ends with the exit code of its command
    130   a second signal cut the draining short
"""

from __future__ import annotations

import click
from reduction import __version__

from reducer.commands.doctor import doctor
from reducer.commands.drain import drain
from reducer.commands.plan import plan
from reducer.commands.run import run
from reducer.commands.serve import serve
from reducer.commands.status import status
from reducer.commands.top import top
from reducer.commands.trace import trace


@click.group(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(__version__, prog_name="reducer")
def main() -> None:
    """Sum gradients for PyTorch data-parallel training."""


main.add_command(doctor)
main.add_command(drain)
main.add_command(plan)
main.add_command(run)
main.add_command(serve)
main.add_command(status)
main.add_command(top)
main.add_command(trace)
