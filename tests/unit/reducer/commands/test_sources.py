"""Options of `reducer serve` from the command line, variables and a file."""

import logging
import tomllib

import pytest
from click.testing import CliRunner

from reducer.commands.serve import serve


@pytest.fixture
def checked(monkeypatch, tmp_path):
    """Return a function that runs `serve --check` with a file's text, and returns its exit code and output."""
    monkeypatch.setattr(logging, "basicConfig", lambda **_: None)

    def check(*arguments, file=None, **variables):
        if file is not None:
            path = tmp_path / "reducer.toml"
            path.write_text(file)
            arguments = ("--config", str(path), *arguments)
        done = CliRunner().invoke(serve, [*arguments, "--check"], env=variables)
        return done.exit_code, done.output

    return check


def shown(output):
    """Return the settings that the command shows, in the format of a --config file."""
    return tomllib.loads(output)


def test_the_command_line_overrides_variables_which_override_the_file(checked):
    file = "data-port = 4\nmetrics-port = 5\ndrain-timeout = 6\ninsecure = true\n"
    variables = {"REDUCER_DATA_PORT": "14", "REDUCER_METRICS_PORT": "15"}
    code, output = checked("--data-port", "24", file=file, **variables)
    assert code == 0, output
    values = shown(output)
    names = ("data-port", "metrics-port", "drain-timeout", "insecure")
    assert [values[name] for name in names] == [24, 15, 6.0, True]


def test_the_settings_are_shown_as_a_file_with_the_source_of_each(checked, tmp_path):
    name = 'a "b"\\c'
    code, output = checked(
        "--trace", name, file="drain-timeout = 6\n", REDUCER_BIND="127.0.0.1:7", REDUCER_LINK="25G"
    )
    assert code == 0, output
    lines = output.splitlines()
    assert 'bind = "127.0.0.1:7"  # from REDUCER_BIND' in lines
    assert f"drain-timeout = 6.0  # from {tmp_path}/reducer.toml" in lines
    assert 'log-level = "info"  # default' in lines
    assert "# token-file is not set" in lines
    assert any(line.startswith("trace = ") and line.endswith("  # from --trace") for line in lines)
    assert shown(output)["trace"] == name
    code, again = checked(file=output)
    assert code == 0, again
    assert shown(again) == shown(output)


def test_the_file_may_be_named_by_a_variable(checked, tmp_path):
    path = tmp_path / "other.toml"
    path.write_text('memory-limit = "1M"\nexit-after-job = 30\nlog-format = "json"\n')
    code, output = checked(REDUCER_CONFIG=str(path))
    assert code == 0, output
    values = shown(output)
    assert (values["memory-limit"], values["exit-after-job"]) == (1 << 20, 30.0)
    assert values["log-format"] == "json"


def test_an_empty_variable_counts_as_unset(checked):
    code, output = checked(REDUCER_BIND="", REDUCER_MEMORY_LIMIT="")
    assert code == 0, output
    assert shown(output)["bind"] == "127.0.0.1:50051"


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("bind", "reducer.toml: "),
        (
            "metric-port = 9102",
            "metric-port = 9102: `serve` has no such option; did you mean met",
        ),
        ("bind = [1]", "bind = [1] must be a string, a number, true or false"),
        ("stop-with-stdin = true", "stop-with-stdin = True: `serve` has no such option"),
        ('data-port = "x"', "'x' is not a valid integer; it is from data-port in the --config file"),
        (
            "data-port = 70000",
            "--data-port 70000: must be 0 to 65535; not from the command line: data-port in",
        ),
        ("exit-after-job = -1", "--exit-after-job -1: must be 0 or more seconds"),
    ],
)
def test_an_invalid_file_is_refused(checked, file, text):
    code, output = checked(file=file)
    assert code == 2
    assert text in " ".join(output.split())


def test_a_missing_file_is_refused(checked):
    code, output = checked("--config", "/nowhere/x.toml")
    assert code == 2
    assert "/nowhere/x.toml: No such file or directory" in output


@pytest.mark.parametrize(
    ("variables", "text"),
    [
        (
            {"REDUCER_BIND": "0.0.0.0:1"},
            "--insecure (REDUCER_INSECURE=1) if everybody on that network may be trusted; not from the ",
        ),
        ({"REDUCER_PROCESSES": "0"}, "not from the command line: REDUCER_PROCESSES"),
        ({"REDUCER_DATA_PORT": "x"}, "'x' is not a valid integer; it is from REDUCER_DATA_PORT"),
        ({"REDUCER_TOKEN_FILE": "/nowhere"}, "/nowhere"),
        ({"REDUCER_TOKEN_FILE": ""}, "REDUCER_TOKEN_FILE is empty: name a file, or unset it"),
        ({"REDUCER_TLS_CA": ""}, "REDUCER_TLS_CA is empty: name a file, or unset it"),
        ({"REDUCER_CONFIG": ""}, "REDUCER_CONFIG is empty: name a file, or unset it"),
    ],
)
def test_an_invalid_variable_is_named(checked, variables, text):
    code, output = checked(**variables)
    assert code == 2
    assert text in " ".join(output.split())


def test_other_empty_variables_count_as_unset_and_the_command_line_takes_precedence(checked, tmp_path):
    (tmp_path / "tokens").write_text("*:0123456789abcdef\n")
    code, output = checked(
        "--token-file", str(tmp_path / "tokens"), REDUCER_BIND="", REDUCER_TRACE="", REDUCER_TOKEN_FILE=""
    )
    assert code == 0, output


def test_a_mistyped_variable_is_warned_about_but_those_of_kubernetes_are_not(checked, caplog):
    variables = {"REDUCER_BINT": "1", "REDUCER_PORT": "tcp://1.2.3.4:5", "REDUCER_SERVICE_HOST": "1.2.3.4"}
    code, _ = checked(**variables)
    assert code == 0
    assert [record.getMessage() for record in caplog.records] == [
        "REDUCER_BINT is not a setting; did you mean REDUCER_BIND?"
    ]
