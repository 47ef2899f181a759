"""`python -m reducer` is the `reducer` command."""

from reducer.cli import main

main(prog_name="reducer")
