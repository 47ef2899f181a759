"""The NCCL benchmark, as far as it needs no GPU: NCCL's settings, its log, and which figures count."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from support.fakes.nccl_texts import socket_log

from benchmarks.gpu import nccl, nccl_log
from benchmarks.gpu.nccl_log import NcclLog
from benchmarks.gpu.nccl_ranks import GpuMissing, check_gpus, variables
from benchmarks.lab.cluster import Shape, running
from benchmarks.lab.network import NetworkUnavailable
from benchmarks.lab.traffic import Link, Traffic
from benchmarks.method.paired import Measurement, Sample
from benchmarks.method.report import Report, growth
from benchmarks.method.row import CLEARLY_FASTER, Row

LOGS = [socket_log(rank) for rank in range(4)]


def gpus(monkeypatch: pytest.MonkeyPatch, count: int, has_nccl: bool = True) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    monkeypatch.setattr(dist, "is_nccl_available", lambda: has_nccl)


def measurement(seconds: float) -> Measurement:
    made = Measurement()
    for _ in range(3):
        made.add([Sample([seconds], 0.1)] * 4, 0.1, Traffic())
    return made


def row(shaped_s: float = 2.0, unshaped_s: float = 0.5, log: NcclLog | None = None) -> Row:
    return Row(
        Shape(workers=4, reducers=4, device="cuda", link=Link(rate_mbit=500)),
        "all-reduce",
        64 << 20,
        1,
        {"tcp": measurement(1.5), "ring": measurement(shaped_s)},
        unshaped_s={"tcp": 0.3, "ring": unshaped_s},
        nccl=nccl_log.read(LOGS) if log is None else log,
    )


def test_ranks_on_links_use_sockets_only_and_have_their_own_host_id() -> None:
    told = variables(3, "eth0", "/tmp/log", sockets=True, version=(2, 29, 7))
    assert told == {
        "NCCL_HOSTID": "h3",
        "NCCL_NET": "Socket",
        "NCCL_IB_DISABLE": "1",
        "NCCL_P2P_DISABLE": "1",
        "NCCL_SHM_DISABLE": "1",
        "NCCL_NVLS_ENABLE": "0",
        "NCCL_MNNVL_ENABLE": "0",
        "NCCL_SOCKET_IFNAME": "eth0",
        "NCCL_ALGO": "Ring",
        "NCCL_PROTO": "Simple",
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV,TUNING",
        "NCCL_DEBUG_FILE": "/tmp/log",
    }
    newer = variables(3, "eth0", "/tmp/log", sockets=True, version=(2, 30, 0))
    assert newer == told | {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}


def test_ranks_with_their_own_gpus_let_nccl_choose() -> None:
    told = variables(0, "lo", "/tmp/log", sockets=False, version=(2, 30, 0))
    assert set(told) == {"NCCL_SOCKET_IFNAME", "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"}


def test_a_log_is_parsed() -> None:
    found = nccl_log.read(LOGS)
    assert found.version == "2.29.7+cuda13.0"
    assert found.networks == {"Socket"}
    assert found.interfaces == {"eth0"}
    assert found.complete == {(0, 4), (1, 4), (2, 4), (3, 4)}
    assert found.nodes == {4}
    assert found.channels == {2}
    assert found.transports == {"NET/Socket/0"}
    assert found.choices == {("RING", "SIMPLE")}
    assert found.variables["NCCL_ALGO"] == "Ring"
    assert found.variables["NCCL_SHM_DISABLE"] == "1", "the full stop is not part of it"
    assert found.problems(4) == []
    assert found.summary() == (
        "NCCL 2.29.7+cuda13.0: RING SIMPLE, network Socket on eth0, 2 channels by NET/Socket/0"
    )
    assert any(line.endswith("NCCL INFO Using network Socket") for line in found.lines)
    assert not any("Bytes ->" in line for line in found.lines)
    json.dumps(found.json())


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("Using network Socket", "Using network IBext_v8", "the network is ['IBext_v8'], not Socket"),
        ("via NET/Socket/0", "via P2P/CUMEM", "connected by ['P2P/CUMEM'], not NET/Socket"),
        ("Algo RING proto SIMPLE", "Algo TREE proto LL128", "all-reduces were [('TREE', 'LL128')]"),
        ("rank 3 nranks 4 cudaDev 0 nvmlDev 0 busId 80 commId", "", "the communicators that are complete"),
    ],
)
def test_evidence_against_a_ring_over_sockets(old: str, new: str, problem: str) -> None:
    (found,) = nccl_log.read([log.replace(old, new) for log in LOGS]).problems(4)
    assert problem in found


def test_older_logs_name_the_choice_by_numbers_or_not_at_all() -> None:
    by_number = [log.replace("Algo RING proto SIMPLE", "Algo 1 proto 2 time 9.9") for log in LOGS]
    assert nccl_log.read(by_number).choices == {("RING", "SIMPLE")}
    silent = [log.replace("AllReduce", "Nothing") for log in LOGS]
    assert nccl_log.read(silent).problems(4) == [], "NCCL_ALGO says it"
    silent = [log.replace("NCCL_ALGO", "NCCL_OTHER") for log in silent]
    assert nccl_log.read(silent).problems(4) == ["nothing says that the algorithm was a ring"]


def test_no_log_is_no_evidence() -> None:
    assert len(nccl_log.read([""] * 4).problems(4)) == 4
    assert "unknown version" in nccl_log.read([]).summary()


def test_a_figure_measures_the_network_if_clearly_faster_without_links() -> None:
    good = row(2.0, 2.0 / CLEARLY_FASTER)
    assert good.doubts("ring") == good.doubts("tcp") == []
    doubtful = row(2.0, 1.25)
    assert doubtful.doubts("ring") == ["unshaped it is only 1.60 times as fast, 2 is wanted"]
    assert doubtful.doubts("tcp") == []
    text = "\n".join(Report(environment={}, rows=[doubtful]).lines())
    assert "NCCL (*)" in text
    assert "2000 ms, 1250 ms unshaped, 1.60 times as fast" in text
    assert "(*) all-reduce, n=4, 500 Mbit/s, 1 ms, NCCL: no figure of the network: unshaped" in text
    assert "(*)" not in "\n".join(Report(environment={}, rows=[good]).lines())


def test_a_figure_measures_the_network_if_the_log_confirms_it() -> None:
    lost = row(log=nccl_log.read([log.replace("NET/Socket/0", "SHM/direct") for log in LOGS]))
    assert lost.doubts("ring") == ["neighbours are connected by ['SHM/direct'], not NET/Socket"]
    assert lost.doubts("tcp") == [], "ours does not use it"


def test_the_json_file_holds_the_evidence(tmp_path: Path) -> None:
    Report(environment={}, rows=[row(2.0, 1.25)]).write(tmp_path / "found.json")
    (found,) = json.loads((tmp_path / "found.json").read_text())["rows"]
    assert found["nccl"]["version"] == "2.29.7+cuda13.0"
    assert found["nccl"]["choices"] == [["RING", "SIMPLE"]]
    assert found["contenders"]["ring"]["unshaped_s"] == 1.25
    assert found["contenders"]["ring"]["doubts"]


def test_loopback_figures_need_no_comparison() -> None:
    alone = replace(row(), shape=replace(row().shape, link=None), unshaped_s={})
    assert alone.doubts("ring") == [], "it is said to be loopback"
    text = "\n".join(Report(environment={}, rows=[alone]).lines())
    assert "(*)" not in text
    assert "all-reduce, n=4, loopback: NCCL 2.29.7" in text


def test_growth_with_workers_is_not_compared_across_devices() -> None:
    def on(device: str, workers: int) -> Row:
        shape = Shape(workers=workers, reducers=workers, device=device, link=Link(rate_mbit=500))
        return Row(shape, "all-reduce", 64 << 20, 1, {"tcp": measurement(1.0)})

    assert growth([on("cpu", 2), on("cuda", 4)]) == []
    assert len(growth([on("cpu", 2), on("cpu", 4)])) == 1


@pytest.mark.parametrize(
    ("count", "has_nccl", "wanted", "reason"),
    [
        (0, True, 1, r"NCCL needs a GPU, torch \S+ sees none"),
        (2, False, 1, r"torch \S+ is built without NCCL"),
        (2, True, 4, "a GPU for each of 4 ranks, this machine has 2"),
    ],
)
def test_missing_gpus_or_nccl_are_reported(
    monkeypatch: pytest.MonkeyPatch, count: int, has_nccl: bool, wanted: int, reason: str
) -> None:
    gpus(monkeypatch, count, has_nccl)
    with pytest.raises(GpuMissing, match=reason):
        check_gpus(wanted)


def test_ranks_may_share_a_gpu_over_sockets_only(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus(monkeypatch, 1)
    check_gpus(1)
    with (
        pytest.raises(GpuMissing, match="a GPU for each of 4 ranks"),
        running(Shape(workers=4, reducers=4, device="cuda")),
    ):
        pass
    assert Shape(workers=4, reducers=4, device="cuda").name == "n4-k4-cuda"
    assert Shape(workers=4, reducers=4, device="cuda", sockets=True).name == "n4-k4-cuda-shared-gpu"


def missing(reason: Exception) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise reason

    return fail


@pytest.mark.parametrize("what", ["check_gpus", "check_network"])
def test_the_tool_reports_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    monkeypatch.setattr(nccl, "check_gpus", lambda _: None)
    error = {"check_gpus": GpuMissing, "check_network": NetworkUnavailable}[what]
    monkeypatch.setattr(nccl, what, missing(error("it is not there")))
    monkeypatch.setattr(sys, "argv", ["nccl"])
    with pytest.raises(SystemExit) as ended:
        nccl.main()
    assert ended.value.code == 2
    assert capsys.readouterr().err == "nccl: it is not there\n"


@pytest.mark.parametrize("wrong", ["--workers=1", "--reducers=0", "--rounds=0", "--rate=0", "--size=much"])
def test_wrong_arguments_are_refused(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        nccl.parse([wrong])
    assert ended.value.code == 2
    assert "error: " in capsys.readouterr().err


def test_reducers_default_to_the_number_of_workers() -> None:
    assert nccl.parse(["--workers", "8"]).reducers == 8
    assert nccl.parse(["--workers", "8", "--reducers", "2"]).reducers == 2
