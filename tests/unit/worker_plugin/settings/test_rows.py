"""The table of settings, the arguments, the environment and the help agree."""

import inspect
import typing

import pytest
from reduction.errors import ConfigError

from worker_plugin import ReductionState
from worker_plugin.config import AllSettings, PluginConfig, build
from worker_plugin.settings.rows import rows

ROWS = rows(PluginConfig)


def test_type_checkers_know_the_settings_of_the_table():
    """Every type of a setting is accepted for its argument, and so is None."""
    given, understood = typing.get_type_hints(AllSettings), typing.get_type_hints(PluginConfig)
    assert {*given} == {*understood} == {row.name for row in ROWS}
    assert given["reducers"] == typing.get_type_hints(ReductionState.__init__)["reducers"]
    for name in {*given} - {"reducers"}:
        assert members(given[name]) >= members(understood[name]) | {type(None)}, name


def members(union):
    """Return the types of a union, or the one type."""
    return {*(typing.get_args(union) or (union,))}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
@pytest.mark.usefixtures("nobody_warned")
def test_each_row_is_an_argument_a_variable_and_a_line_of_the_help(row, caplog):
    assert row.variable == f"REDUCTION_{row.name.upper()}"
    assert getattr(PluginConfig(), row.name) == row.default
    assert f"    {row.name}: {row.doc.split()[0]}" in inspect.getdoc(ReductionState)
    for arguments, environ in ({row.name: "?"}, {}), ({}, {row.variable: "?"}):
        text = outcome(row.name, arguments, environ)
        assert "?" in text or row.name in text
    assert caplog.records == []


def outcome(name, arguments, environ):
    """Return the value of a setting as text, or the error."""
    try:
        return str(getattr(build(arguments, environ), name))
    except ConfigError as error:
        return str(error)


def test_an_unknown_argument_is_named_with_the_nearest_one():
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'timeout'; did you mean 'timeout_s'\?"):
        ReductionState("a:1", timeout=5)
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'colour'$"):
        ReductionState("a:1", colour="red")
