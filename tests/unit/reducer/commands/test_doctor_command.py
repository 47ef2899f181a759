"""`reducer doctor`: bad input is rejected before any measurement, and the measurements are judged."""

import json
import logging
from dataclasses import asdict, replace

import pytest
from click.testing import CliRunner
from support.fakes.doctor_facts import healthy

from reducer.commands.main import main


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch):
    """Undo the command's log settings, which hold for the whole process."""
    monkeypatch.setenv("GRPC_VERBOSITY", "ERROR")
    client = logging.getLogger("reduction.client")
    level = client.level
    yield
    client.setLevel(level)


def run(*options, **variables):
    return CliRunner().invoke(main, ["doctor", *options], env={"COLUMNS": "80", **variables})


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["host"], "'host' is not HOST:PORT"),
        (["vertex:"], "CLUSTER_SPEC"),
        (["--timeout", "0"], "--timeout 0: must be positive"),
        (["--link", "fast"], "--link is 'fast'"),
        (["--compute", "1"], "give --parameters too"),
        (["--workers", "4"], "give --parameters too"),
        (["--worker-price", "1", "--reducer-price", "1"], "give --parameters too"),
        (["--parameters", "1M", "--reducer-price", "1"], "give both --worker-price and --reducer-price"),
        (["--parameters", "1M", "--steps", "9"], "--steps 9 is for what they cost"),
        (["--parameters", "1M", "--bucket", "0"], "0 is not a size of a bucket"),
        (["--parameters", "many"], "'many' is not a number of parameters"),
        (["--tls-cert", "x"], "--tls-key and --tls-ca are missing"),
        (["--token-file", "/nowhere"], "the token file /nowhere cannot be read"),
        (["--facts", "/nowhere"], "No such file"),
    ],
)
def test_invalid_options_are_refused(options, text):
    result = run(*options)
    assert result.exit_code == 2
    assert text in " ".join(result.output.split()), result.output


def test_a_token_of_another_job_needs_that_jobs_name(tmp_path):
    path = tmp_path / "tokens"
    path.write_text("train:0123456789abcdef\n")
    path.chmod(0o600)
    for options, variables in [
        (("--token-file", str(path)), {}),
        ((), {"REDUCTION_TOKEN_FILE": str(path)}),
    ]:
        result = run("127.0.0.1:1", *options, **variables)
        assert result.exit_code == 2
        said = " ".join(result.output.split())
        assert "the token file has no line for job 'doctor-" in said
        assert "name a job that it has (--job)" in said


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"workers": []}', "no JSON", "[" * 100_000])
def test_invalid_facts_files_are_refused(tmp_path, text):
    path = tmp_path / "facts.json"
    path.write_text(text)
    result = run("--facts", str(path))
    assert result.exit_code == 2
    assert "facts" in result.output.lower()
    assert not isinstance(result.exception, RecursionError)


def test_exit_codes_and_json(tmp_path):
    path = tmp_path / "facts.json"
    for facts, code, verdict in (
        (healthy(), 0, "note"),
        (healthy(expected_mbit=5000.0), 1, "slow"),
        (replace(healthy(), failure="it broke"), 2, "broken"),
    ):
        path.write_text(json.dumps({"facts": asdict(facts)}))
        result = run("--facts", str(path), "--json")
        assert result.exit_code == code
        document = json.loads(result.output)
        assert document["verdict"] == verdict
        assert document["facts"] == asdict(facts)
        assert (document["fix_first"] is None) == (code == 0)
    path.write_text(json.dumps(asdict(healthy())))
    result = run("--facts", str(path), "--parameters", "340M", "--compute", "0.4")
    assert result.exit_code == 0
    assert "x ring" in result.output
    assert "with the current reducers" in " ".join(result.output.split())


def test_its_costs_match_the_planners(tmp_path):
    path = tmp_path / "facts.json"
    path.write_text(json.dumps(asdict(healthy())))
    prices = ["--worker-price", "1.4", "--reducer-price", "0.8", "--steps", "5000"]
    found = json.loads(run("--facts", str(path), "--parameters", "340M", *prices, "--json").output)[
        "forecast"
    ]
    training = found["training"]
    same = ["--workers", "4", "--link", f"{training['worker_mbit']}M", "--parameters", "340M"]
    same += ["--reducer-cores", "1", "--round-trip", f"{training['round_trip_s'] * 1e3}", "--reducers", "2"]
    planned = json.loads(CliRunner().invoke(main, ["plan", *same, *prices, "--json"]).output)
    of_two = [plan["cost"] for plan in found["advice"]["plans"] if plan["reducers"] == 2]
    assert of_two == pytest.approx([planned["plans"][1]["cost"]], rel=0.01)
    assert found["advice"]["prices"] == {"worker": 1.4, "reducer": 0.8, "steps": 5000}
    # Four workers and two reducers per hour, for the number of steps that were measured.
    assert found["now_cost"] == pytest.approx((4 * 1.4 + 2 * 0.8) * 5000 * found["now"]["total_s"] / 3600)
    output = " ".join(run("--facts", str(path), "--parameters", "340M", *prices).output.split())
    assert f"the price is {found['now_cost']:.2f} for 5000 steps" in output
