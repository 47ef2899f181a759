"""The options that `reducer serve` and `reducer status` share, and a class for renamed options."""

from __future__ import annotations

from collections.abc import Callable

import click

from reducer.config import TLS_OPTIONS


class RenamedOption(click.Option):
    """An option with former names, which still work. Its help shows only its first name."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the option and its help as `click.Parameter` does, without the former names."""
        record = super().get_help_record(ctx)
        if record is None:
            return None
        for former in self.opts[1:]:
            record = record[0].replace(f", {former}", ""), record[1]
        return record


def security_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that name certificates and tokens to a command."""
    file_type = click.Path(dir_okay=False)
    help_texts = (
        "Certificate (chain) to show",
        "Its private key",
        "CA that the other side's certificate must lead to",
    )
    for option, help_text in reversed(tuple(zip(TLS_OPTIONS, help_texts, strict=True))):
        command = click.option(option, type=file_type, help=f"{help_text}, PEM. All three or none.")(command)
    return click.option(
        "--token-file", type=file_type, help="Lines of JOB:TOKEN, *:TOKEN for any other job. See SECURITY.md."
    )(command)
