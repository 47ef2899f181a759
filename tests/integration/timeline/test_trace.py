"""What ranks record about their collectives, and what `reducer trace` makes of it."""

from __future__ import annotations

import json
import os
import re
import signal
import time

import pytest
import torch
from click.testing import CliRunner
from reduction.errors import ReductionError
from reduction.timeline.record import from_json
from reduction.timeline.reducer_record import from_json as reducer_from_json
from support.expected.hierarchical import be_launched

from reducer.commands.main import main

LATE_S = 0.2


def records(directory):
    """Return the records in a directory, by job and rank."""
    found = [from_json(path.read_text(), path.name) for path in sorted(directory.glob("*-rank*.json"))]
    return sorted(found, key=lambda record: (record.job, record.rank))


def said(*arguments):
    result = CliRunner().invoke(main, ["trace", *map(str, arguments)])
    assert result.exit_code == 0, result.output
    return result.output


# ---- in the ranks ----


def traced(rank, reducers, job, directory, size, settings):
    """Sum before, in and after the block; the highest rank is late in the block."""
    be_launched(rank, size)
    with rank.state(reducers, job, local_group=size, **settings) as state:
        rank.wait(state.all_reduce(torch.ones(5)))
        with state.trace(directory):
            for _ in range(3):
                if rank.number == rank.world_size - 1:
                    time.sleep(LATE_S)
                rank.wait(state.all_reduce(torch.ones(300_000)))
        rank.wait(state.all_reduce(torch.ones(5)))


def profiled(rank, reducers, job, directory):
    """Trace sums while torch.profiler is also running."""
    with rank.state(reducers, job) as state:
        rank.wait(state.all_reduce(torch.ones(5)))
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            with state.trace(directory):
                for number in range(3):
                    time.sleep(0.05 * (rank.number == number % 2))
                    rank.wait(state.all_reduce(torch.ones(300_000)))
        profiler.export_chrome_trace(str(directory / f"profiler-{rank.number}.json"))


def waiting_in_between(rank, reducers, job, directory):
    with rank.state(reducers, job, trace=str(directory), chunk_bytes=65536) as state:
        for part in range(2):
            for _ in range(3):
                rank.wait(state.all_reduce(torch.ones(300_000)))
            if not part:
                rank.tell("half")
                rank.hear()


def failing(rank, reducers, job, directory):
    """Fail on rank 1 while rank 0 waits for it."""
    with rank.state(reducers, job, trace=str(directory), close_timeout_s=0.5) as state:
        rank.round(state)
        if rank.number:
            rank.hear()
            state.fail(ValueError("out of data"))
        else:
            future = state.all_reduce(torch.ones(5))
            rank.tell("issued")
            assert isinstance(rank.error_of(lambda: rank.wait(future)), (ReductionError, RuntimeError))


def without_a_directory(rank, reducers, job, path):
    texts = rank.lines("worker_plugin.timeline.recorder")
    with rank.state(reducers, job, trace=str(path)) as state:
        rank.round(state)

        def traced_there():
            with state.trace(path):
                rank.round(state)

        error = rank.error_of(traced_there)
        rank.round(state)
    return type(error).__name__, texts


def recorded(rank, reducers, job):
    """Return the record before the first collective, after it, while one is open, and after the error."""
    with rank.state(reducers, job, close_timeout_s=0.5) as state:
        records = [state.record()]
        rank.wait(state.all_reduce(torch.ones(5)))
        records.append(state.record())
        if rank.number:
            rank.hear()
            state.fail(ValueError("out of data"))
        else:
            future = state.all_reduce(torch.ones(5))
            records.append(state.record())
            rank.tell("issued")
            rank.error_of(lambda: rank.wait(future))
            records.append(state.record())
    return [record and ([span.done is not None for span in record.spans], record.error) for record in records]


def hanging(rank, reducers, job, directory, settings):
    """Withhold rank 1's collective, for which rank 0 waits, until the test releases it."""
    with rank.state(reducers, job, trace=str(directory), close_timeout_s=0.5, **settings) as state:
        rank.round(state)
        rank.tell("began")
        if rank.number:
            rank.hear()
            return type(state.error).__name__
        return type(rank.error_of(lambda: rank.wait(state.all_reduce(torch.ones(5))))).__name__


# ---- tests ----


def test_records_can_be_taken_at_any_moment(fresh_ranks, serve, job):
    call = fresh_ranks().begin(2, recorded, [serve().address], job, group=False)
    assert call.hear(0) == "issued"
    call.tell(1, "fail")
    before, after, while_open, failed = call.answers()[0]
    assert (before, after, while_open) == (None, ([True], ""), ([True, False], ""))
    assert failed[0] == [True, False]
    assert "out of data" in failed[1]


@pytest.mark.parametrize("transport", ["auto", "tcp", "grpc"])
def test_a_trace_has_its_blocks_collectives_and_names_the_late_rank(
    ranks, reducers, job, tmp_path, transport
):
    ranks.run(
        2,
        traced,
        reducers(2),
        job,
        tmp_path,
        None,
        {"transport": transport, "chunk_bytes": 65536},
        group=False,
    )
    found = records(tmp_path)
    assert [(record.job, record.rank, record.world_size, record.error) for record in found] == [
        (job, 0, 2, ""),
        (job, 1, 2, ""),
    ]
    for record in found:
        assert [(span.seq, span.what) for span in record.spans] == [
            (seq, "SUM of 300000 x float32") for seq in (1, 2, 3)
        ]
        for span in record.spans:
            assert span.unpushed == 0
            times = [span.issued, span.taken, span.first_push, span.last_push, span.whole, span.done]
            assert times == sorted(times)
            assert len(span.lanes) == 2
            for lane in span.lanes.values():
                assert lane.first_push <= lane.first_result <= lane.last_result <= span.whole
    text = said(tmp_path, "-o", tmp_path / "trace.out")
    assert f"{job}: 2 of 2 ranks\n" in text
    assert re.search(r"mean of 6 rounds of 2 ranks: [\d.]+ ms for 1.20 MB in 1.0 collectives; ideal", text)
    # One of two ranks waited each time. On a busy machine other causes may have lost more time.
    lost = re.search(r"lost [\d.]+ ms: (?:.*, )?([\d.]+) ms waiting for rank 1 \(.*\) to begin", text)
    assert float(lost[1]) >= 1e3 * LATE_S * 0.25, text
    waited = re.search(
        r"rank 1 \(.*\) was late most often, for 3 of 3 collectives; the others waited ([\d.]+) ms", text
    )
    assert float(waited[1]) >= 1e3 * LATE_S * 0.5
    trace = json.loads((tmp_path / "trace.out").read_text())
    assert {event["pid"] for event in trace["traceEvents"]} == {0, 1}
    assert abs(trace["baseTimeNanoseconds"] / 1e9 - time.time()) < 600


def test_a_trace_shares_a_timeline_with_torchs_profiler(ranks, reducers, job, tmp_path):
    ranks.run(2, profiled, reducers(1), job, tmp_path, group=False)
    profiles = [f"--profile={tmp_path}/profiler-{rank}.json" for rank in range(2)]
    said(tmp_path, "-o", tmp_path / "trace.out", "--plot", tmp_path / "picture", *profiles)
    drawn = (tmp_path / "picture").read_text()
    assert drawn.count("torch.profiler</text>") == 2
    assert "3: SUM of 300000 x float32: waiting for results" in drawn
    assert "aten::ones: torch's operators" in drawn
    events = json.loads((tmp_path / "trace.out").read_text())["traceEvents"]
    titles = [
        event
        for event in events
        if event["name"] == "process_name" and "torch.profiler" in str(event["args"])
    ]
    assert len({title["pid"] for title in titles}) == 2
    for rank, title in enumerate(titles):
        lines = [
            event
            for event in events
            if (event["pid"], event.get("tid")) == (rank, 0) and ": SUM" in event["name"]
        ]
        begins = [event["ts"] for event in lines if event["ph"] == "b"]
        ends = [event["ts"] for event in lines if event["ph"] == "e"]
        seen = sorted(
            (event["ts"], event["ts"] + event["dur"])
            for event in events
            if (event["pid"], event["name"], event["ph"]) == (title["pid"], "reduction:all_reduce", "X")
        )
        assert len(seen) == len(begins) == len(ends) == 3
        # The profiler's event starts on the user's thread just before ours, and ends when the result is in the tensor.
        for begin, end, (start, stop) in zip(begins, ends, seen, strict=True):
            assert -1_000 < begin - start < 20_000
            assert abs(end - stop) < 20_000


def test_in_hierarchical_mode_each_record_covers_one_rail(ranks, reducers, job, tmp_path):
    ranks.run(4, traced, reducers(1), job, tmp_path, 2, {})
    found = records(tmp_path)
    assert [(record.job, record.rank, record.world_size) for record in found] == [
        (f"{job}@{rail}", node, 2) for rail in range(2) for node in range(2)
    ]
    assert all(len(record.spans) == 3 for record in found)
    assert said(tmp_path).count(": 2 of 2 ranks\n") == 2


def test_failing_ranks_record_what_they_were_doing(ranks, reducers, job, tmp_path):
    call = ranks.begin(2, failing, reducers(1), job, tmp_path, group=False)
    assert call.hear(0) == "issued"
    call.tell(1, "fail")
    call.answers()
    found = records(tmp_path)
    assert [record.rank for record in found] == [0, 1]
    assert all("out of data" in record.error for record in found)
    assert found[0].spans[-1].done is None
    # The rank may have failed before it pushed.
    assert re.search(
        r"has 1 without a result, the oldest is 1: SUM of 5 x float32: (0|20) of 20 bytes not pushed",
        said(tmp_path),
    )


def files(directory, count):
    """Wait until there are `count` records."""
    until = time.monotonic() + 30
    while len(found := sorted(directory.glob("*-rank*.json"))) < count and time.monotonic() < until:
        time.sleep(0.05)
    return found


def test_all_ranks_leave_records_when_a_collective_times_out(ranks, reducers, job, tmp_path):
    call = ranks.begin(2, hanging, reducers(1), job, tmp_path, {"timeout_s": 10.0}, group=False)
    assert [call.hear(rank) for rank in range(2)] == ["began", "began"]
    assert len(files(tmp_path, 2)) == 2
    call.tell(1, "end")
    assert call.answers() == ["CollectiveTimeout", "CollectiveTimeout"]
    found = records(tmp_path)
    assert [record.rank for record in found] == [0, 1]
    assert all(record.error.startswith("CollectiveTimeout") for record in found)
    assert "rank 0 (" in said(tmp_path)
    assert "has 1 without a result" in said(tmp_path)


def test_the_others_leave_records_when_a_rank_is_killed(fresh_ranks, reducers, job, tmp_path):
    ranks = fresh_ranks()
    call = ranks.begin(3, hanging, reducers(1), job, tmp_path, {}, group=False)
    assert [call.hear(rank) for rank in range(3)] == ["began"] * 3
    ranks.processes[2].process.kill()
    assert len(files(tmp_path, 2)) == 2
    found = records(tmp_path)
    assert [record.rank for record in found] == [0, 1]
    assert [re.match(r"WorkerLost: .*rank 2", record.error) is not None for record in found] == [
        True,
        True,
    ], [record.error for record in found]
    assert ": 2 of 3 ranks, without 2" in said(tmp_path)


def test_a_job_that_hangs_writes_records_on_demand(ranks, reducers, job, tmp_path):
    call = ranks.begin(2, hanging, reducers(1), job, tmp_path, {"timeout_s": 300.0}, group=False)
    assert [call.hear(rank) for rank in range(2)] == ["began", "began"]
    # The file may exist before a rank checks for the first time.
    until = time.monotonic() + 30
    while len(list(tmp_path.glob("*-rank*.json"))) < 2 and time.monotonic() < until:
        (tmp_path / "now").touch()
        time.sleep(1.2)
    text = said(tmp_path)
    assert f"{job}: 2 of 2 ranks\n" in text
    assert re.search(r"rank 0 \(.*\) has 1 without a result, the oldest is 1", text)
    call.tell(1, "end")
    assert "NoneType" in call.answers()


def test_an_unwritable_trace_ends_only_its_own_block(ranks, reducers, job, tmp_path):
    path = tmp_path / "file"
    path.write_text("")
    for error, texts in ranks.run(2, without_a_directory, reducers(1), job, path, group=False):
        assert error == "FileExistsError"
        assert [text for text in texts if f"no trace in {path}" in text]


def test_records_of_earlier_lives_stay_and_the_newest_counts(ranks, reducers, job, tmp_path):
    for _ in range(2):
        ranks.run(1, traced, reducers(1), job, tmp_path, None, {}, group=False)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert len(names) == 2
    assert names[0].endswith("-rank0.1.json")
    assert names[1].endswith("-rank0.json")
    assert "mean of 3 rounds" in said(tmp_path)
    os.utime(tmp_path / names[1], (1, 1))
    (tmp_path / names[1]).write_text("{}")
    result = CliRunner().invoke(main, ["trace", str(tmp_path)])
    assert (result.exit_code, "is not a record of a rank" in result.output) == (2, True)


def test_a_reducer_writes_its_part_when_the_job_ends_and_on_demand(ranks, serve, job, tmp_path):
    reducer = serve("--trace", str(tmp_path), "--processes", "2")
    call = ranks.begin(2, waiting_in_between, [reducer.address], job, tmp_path, group=False)
    assert [call.hear(rank) for rank in range(2)] == ["half", "half"]
    os.kill(reducer.pid, signal.SIGUSR2)
    until = time.monotonic() + 30
    while len(list(tmp_path.glob("*-reducer-*.json"))) < 2 and time.monotonic() < until:
        time.sleep(0.05)
    for rank in range(2):
        call.tell(rank, "go on")
    call.answers()
    while time.monotonic() < until:
        parts = [reducer_from_json(path.read_text(), "") for path in tmp_path.glob("*-reducer-*.json")]
        if [len(part.spans) for part in parts] == [6, 6]:
            break
        time.sleep(0.05)
    assert [part.job for part in parts] == [job] * 2  # one file per process; later ones replace earlier ones
    for part in parts:
        for span in part.spans:
            assert span.first_push <= span.published
            assert set(span.begun) == {0, 1}
            assert sum(span.last.values()) == span.chunks
    text = said(tmp_path, "-o", tmp_path / "trace.out")
    assert "on the links or at the reducers" not in text
    trace = json.loads((tmp_path / "trace.out").read_text())
    names = [event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "process_name"]
    assert len([name for name in names if f"{job} reducer 127.0.0.1:" in name]) == 2
    sums = [event for event in trace["traceEvents"] if event["name"] == "sum 3" and event["ph"] == "b"]
    whole = [
        event for event in trace["traceEvents"] if event["name"].startswith("3: SUM") and event["ph"] == "b"
    ]
    assert len(sums) == len(whole) == 2
    assert min(event["ts"] for event in whole) <= min(event["ts"] for event in sums)


def test_a_profile_needs_an_output_and_must_be_valid(ranks, reducers, job, tmp_path):
    ranks.run(2, traced, reducers(1), job, tmp_path, None, {}, group=False)
    wrong = tmp_path / "wrong.json"
    for text, arguments, message in (
        ("{}", [], "name one of them"),
        ("{}", ["-o", str(tmp_path / "out")], "not an export of torch.profiler 2.4 or later"),
        ("{", ["-o", str(tmp_path / "out")], "Expecting"),
    ):
        wrong.write_text(text)
        result = CliRunner().invoke(main, ["trace", str(tmp_path), "--profile", str(wrong), *arguments])
        assert result.exit_code == 2
        assert message in " ".join(result.output.split())


def test_a_window_needs_a_plot_and_must_not_be_empty(ranks, reducers, job, tmp_path):
    ranks.run(1, traced, reducers(1), job, tmp_path, None, {}, group=False)
    for arguments, message in (
        (["--from", "1"], "--from and --to are for --plot"),
        (["--plot", str(tmp_path / "out"), "--from", "2", "--to", "1"], "--from 2 is not before --to 1"),
        (["--plot", str(tmp_path / "out"), "--from", "1e6"], "nothing happens from 1e+06 s"),
        (["--plot", str(tmp_path / "no" / "out")], "No such file or directory"),
        (["--plot", str(tmp_path / "out"), "--to", "inf"], "inf is not in the range"),
    ):
        result = CliRunner().invoke(main, ["trace", str(tmp_path), *arguments])
        assert result.exit_code == 2
        assert message in " ".join(result.output.split())


def test_a_directory_without_records_is_an_error(tmp_path):
    result = CliRunner().invoke(main, ["trace", str(tmp_path)])
    assert result.exit_code == 2
    assert "no record in" in result.output


def test_a_reducer_follows_no_symlink_and_only_its_user_may_read_records(ranks, serve, job, tmp_path):
    directory, precious = tmp_path / "traces", tmp_path / "precious"
    directory.mkdir()
    precious.write_text("precious")
    reducer = serve("--trace", str(directory))
    name = f"{job}-reducer-{reducer.address.replace(':', '_')}-{reducer.pid}"
    (directory / f"{name}.json").symlink_to(precious)
    ranks.run(1, traced, [reducer.address], job, tmp_path / "ranks", None, {}, group=False)
    path, until = directory / f"{name}.1.json", time.monotonic() + 30
    while not path.exists() and time.monotonic() < until:
        time.sleep(0.05)
    assert precious.read_text() == "precious"
    modes = [one.stat().st_mode & 0o777 for one in (path, *(tmp_path / "ranks").iterdir())]
    assert modes == [0o600] * 2
