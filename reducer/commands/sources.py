"""Sources of the options of `reducer serve`: the command line, variables, a file, and defaults, in this order."""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

import click
from click.core import ParameterSource
from reduction.process.launch import SETTINGS_PREFIX
from reduction.process.variables import nearest, unknown
from reduction.text import printable

#: Variables that Kubernetes sets in every container of a namespace with a Service named "reducer".
_OF_KUBERNETES = ("REDUCER_SERVICE_", "REDUCER_PORT")
#: Prefix of the variables that are options of `reducer run`.
RUN_PREFIX = f"{SETTINGS_PREFIX}RUN_"
#: Options that are not settings, because a file cannot name a file or request a check.
_NO_SETTINGS = ("config", "check")
#: Key under which a context keeps the path of the file.
_PATH = "reducer.config"


def variable(option: str) -> str:
    """Return the variable of an option such as data-port."""
    return SETTINGS_PREFIX + option.replace("-", "_").upper()


def read_file(context: click.Context, _: click.Parameter, path: Path | None) -> None:
    """Use a TOML file's values where neither the command line nor a variable has one.

    Raises:
        click.BadParameter: the file cannot be read, is not TOML, or names an unknown option.
    """
    if path is None:
        return
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise click.BadParameter(f"{path}: {reason}", context) from None
    options = {name: option for option, name in _options(context.command)}
    chosen: dict[str, str | bool] = {}
    for option, value in values.items():
        name = next((name for name in options if options[name] == option), None)
        if name is None or not isinstance(value, str | int | float):
            meant = nearest(option, options.values())
            hint = f"; did you mean {meant}?" if name is None and meant is not None else ""
            raise click.BadParameter(
                f"{path}: {option} = {value!r}: `serve` has no such option{hint}"
                if name is None
                else f"{path}: {option} = {value!r} must be a string, a number, true or false",
                context,
            )
        chosen[name] = value if isinstance(value, bool) else str(value)
    context.default_map = chosen
    context.meta[_PATH] = path


def as_file(context: click.Context, found: Mapping[str, tuple[object, str]]) -> Iterator[str]:
    """Yield the lines of a file for --config with all settings, each with a comment on its source.

    Args:
        context: context of the command.
        found: effective values of unset options, and their sources, by option.
    """
    for option, name in _options(context.command):
        if option in _NO_SETTINGS:
            continue
        value, source = context.params[name], f"from {_source(context, option, name) or f'--{option}'}"
        if context.get_parameter_source(name) is ParameterSource.DEFAULT:
            value, source = found.get(option, (value, "default"))
        elif context.get_parameter_source(name) is ParameterSource.DEFAULT_MAP:
            source = f"from {printable(str(context.meta[_PATH]))}"
        if value is None:
            yield f"# {option} is not set"
        else:
            yield f"{option} = {json.dumps(value, ensure_ascii=False)}  # {source}"


def unknown_variables(command: click.Command) -> Iterator[str]:
    """Yield a warning about each variable that looks like an option but is not."""
    known = {variable(option) for option, _ in _options(command)}
    for name, text in unknown(SETTINGS_PREFIX, known, os.environ):
        if not name.startswith((*_OF_KUBERNETES, RUN_PREFIX)):
            yield text


def from_elsewhere(context: click.Context) -> str:
    """Return a text that names the options that are not from the command line; empty if all are."""
    found = [
        source for option, name in _options(context.command) if (source := _source(context, option, name))
    ]
    return f"; not from the command line: {', '.join(found)}" if found else ""


class SettingsCommand(click.Command):
    """A command whose errors name the source of a value that is not from the command line."""

    def parse_args(self, context: click.Context, args: list[str]) -> list[str]:
        """Read all options as `click.Command` does.

        Raises:
            click.UsageError: a value has the wrong type.
        """
        try:
            rest = super().parse_args(context, args)
            _refuse_empty_files(self, context)
            return rest
        except click.BadParameter as error:
            if isinstance(error.param, click.Option) and error.param.name is not None:
                option = error.param.opts[0].removeprefix("--")
                if source := _source(context, option, error.param.name):
                    message = f"{error.message.removesuffix('.')}; it is from {source}"
                    raise click.BadParameter(message, context, error.param) from None
            raise


def _refuse_empty_files(command: click.Command, context: click.Context) -> None:
    """Refuse an empty variable of a file, which would count as unset and so disable TLS or tokens.

    Raises:
        click.BadParameter: there is such a variable.
    """
    for parameter in command.params:
        if isinstance(parameter.type, click.Path) and parameter.type.file_okay and parameter.name is not None:
            name = variable(parameter.opts[0].removeprefix("--"))
            is_given = context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE
            if not is_given and os.environ.get(name) == "":
                raise click.BadParameter(f"{name} is empty: name a file, or unset it", context)


def _source(context: click.Context, option: str, name: str) -> str:
    """Return the source of an option's value; empty for the command line or a default."""
    match context.get_parameter_source(name):
        case ParameterSource.ENVIRONMENT:
            return variable(option)
        case ParameterSource.DEFAULT_MAP:
            return f"{option} in the --config file"
    return ""


def _options(command: click.Command) -> Iterator[tuple[str, str]]:
    """Yield each option's long name without dashes, and the name of its parameter."""
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden and parameter.name is not None:
            yield parameter.opts[0].removeprefix("--"), parameter.name
