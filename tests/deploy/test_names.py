"""Reducers as `deploy/` starts them, found by the names that Kubernetes, Vertex AI and SageMaker assign."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from reduction.discovery.address_forms import expand
from support.artefacts import documents, in_tools, serving
from support.network.names import Names, missing
from support.processes.children import environment
from support.processes.summing import Summing

lacks = missing()
# A busy machine is no failure. Each of these tests starts half a dozen processes, two of them with torch.
pytestmark = [pytest.mark.skipif(lacks is not None, reason=f"{lacks}"), pytest.mark.timeout(300)]

DOMAIN = "training.svc.cluster.local"
SEARCH = (DOMAIN, "svc.cluster.local", "cluster.local")


class Pods:
    """Reducers at addresses 127.0.1.N of a place, started there with an artefact's command."""

    def __init__(self, names: Names, words: list[str], folder: Path, **variables: str) -> None:
        self._names, self._words, self._variables = names, words, variables
        self._log = folder / "reducers.log"
        self._cleanup = contextlib.ExitStack()
        self._running: dict[str, subprocess.Popen[str]] = {}

    def start(self, address: str) -> None:
        """Start one. All share this machine, so each has its own address and runs one process."""
        words = [word.replace("0.0.0.0", address) for word in self._words if "--processes" not in word]
        command = [*self._names.prefix, sys.executable, "-m", "reducer", *words, "--processes=1"]
        process, _ = self._cleanup.enter_context(serving(command, self._log, environment(**self._variables)))
        self._running[address] = process

    def kill(self, address: str) -> None:
        self._running[address].kill()
        self._running.pop(address).wait()

    def stop(self) -> None:
        """Drain all; each must exit with 0."""
        for process in self._running.values():
            process.terminate()
        assert [process.wait(30) for process in self._running.values()] == [0] * len(self._running), (
            self._log.read_text()
        )

    def __enter__(self) -> Pods:
        return self

    def __exit__(self, *_: object) -> None:
        self._cleanup.close()


def jobs_at(names: Names, address: str, *options: str) -> list[dict[str, Any]]:
    """Return a reducer's jobs, or none if it does not answer."""
    command = [*names.prefix, sys.executable, "-m", "reducer", "status", "--json", *options, address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment())
    if done.returncode:
        return []
    [process] = json.loads(done.stdout)["processes"]
    jobs: list[dict[str, Any]] = process["jobs"]
    return jobs


def test_a_pod_of_the_stateful_set_comes_back_at_another_address(tmp_path: Path) -> None:
    [stateful_set] = documents("kubernetes/base/statefulset.yaml")
    spec, service = stateful_set["spec"], stateful_set["spec"]["serviceName"]
    [container] = spec["template"]["spec"]["containers"]
    tokens = tmp_path / "tokens"
    tokens.write_text(f"*:{'a' * 64}\n")
    tokens.chmod(0o600)
    words = [
        f"--token-file={tokens}" if word.startswith("--token-file") else word for word in container["args"]
    ]
    pods = [f"{stateful_set['metadata']['name']}-{pod}" for pod in range(spec["replicas"])]
    addresses = {f"{pod}.{service}.{DOMAIN}": f"127.0.1.{n}" for n, pod in enumerate(pods, 1)}
    reducers = "reducer-{0..3}.reducers:50051"
    assert list(expand(reducers)) == [f"{pod}.{service}:50051" for pod in pods]
    with Names(tmp_path, addresses, SEARCH) as names, Pods(names, words, tmp_path) as running:
        for address in addresses.values():
            running.start(address)
        token = {"REDUCTION_TOKEN_FILE": str(tokens)}
        with Summing(tmp_path, reducers, prefix=names.prefix, **token) as ranks:
            ranks.go_on()
            running.kill("127.0.1.3")
            ranks.go_on()
            running.start("127.0.1.9")
            names.set(addresses | {f"reducer-2.{service}.{DOMAIN}": "127.0.1.9"})
            ranks.wait_for(
                lambda: any(
                    job["received_bytes"]
                    for job in jobs_at(names, "reducer-2.reducers:50051", f"--token-file={tokens}")
                ),
                "sums at the pod's new address",
            )
            ranks.stop()
        running.stop()


@pytest.fixture
def vertex(tmp_path: Path) -> Iterator[tuple[Names, dict[str, str]]]:
    """Return the replicas of deploy/vertex/job.yaml, at most two per pool, and their CLUSTER_SPEC."""
    [job] = documents("vertex/job.yaml")
    pools = {
        f"workerpool{pool}": [
            f"cmle-training-workerpool{pool}-ab-{n}" for n in range(min(2, spec["replicaCount"]))
        ]
        for pool, spec in enumerate(job["workerPoolSpecs"])
    }
    cluster = {pool: [f"{host}:2222" for host in hosts] for pool, hosts in pools.items()}
    hosts = [host for pool in pools.values() for host in pool]
    addresses = {host: f"127.0.1.{n}" for n, host in enumerate(hosts, 1)}
    spec = {"cluster": cluster, "environment": "cloud", "task": {"type": "workerpool0", "index": 0}}
    with Names(tmp_path, addresses) as names:
        yield names, {"CLUSTER_SPEC": json.dumps(spec)}


@pytest.mark.full
def test_the_reducers_of_the_vertex_job(vertex: tuple[Names, dict[str, str]], tmp_path: Path) -> None:
    names, variables = vertex
    [job] = documents("vertex/job.yaml")
    words = job["workerPoolSpecs"][2]["containerSpec"]["args"]
    with Pods(names, words, tmp_path) as running:
        running.start("127.0.1.4")
        running.start("127.0.1.5")
        with Summing(tmp_path, "-", prefix=names.prefix, **variables) as ranks:
            ranks.go_on()
            ranks.stop()
            assert (
                "2 reducers (cmle-training-workerpool2-ab-0:2222, cmle-training-workerpool2-ab-1:2222; "
                "from CLUSTER_SPEC)"
            ) in ranks.log
        running.stop()


@pytest.mark.full
def test_the_reducers_of_the_sagemaker_job(tmp_path: Path) -> None:
    """Their group has the name that workers look for. The document is in SageMaker's format for these groups."""
    request = in_tools(SAGEMAKER, "sagemaker.train")
    environ = request["environment"]
    assert environ["REDUCER_EXIT_AFTER_JOB"] == "30"
    environ["REDUCER_EXIT_AFTER_JOB"] = "1"
    numbers = iter(range(1, 100))
    groups = [
        {
            "instance_group_name": group["instance_group_name"],
            "instance_type": group["instance_type"],
            "hosts": [f"algo-{next(numbers)}" for _ in range(2)],
        }
        for group in request["groups"]
    ]
    hosts = [host for group in groups for host in group["hosts"]]
    document = {"current_host": "algo-1", "current_group_name": "workers", "hosts": hosts}
    folder = tmp_path / "input/config"
    folder.mkdir(parents=True)
    (folder / "resourceconfig.json").write_text(json.dumps(document | {"instance_groups": groups}))
    addresses = {host: f"127.0.1.{n}" for n, host in enumerate(hosts, 1)}
    [reducers] = [group["hosts"] for group in groups if group["instance_group_name"] == "reducers"]
    with Names(tmp_path, addresses) as names, contextlib.ExitStack() as cleanup:
        running = []
        for host in reducers:
            words = ["serve", f"--bind={addresses[host]}:50051", "--processes=1"]
            command = [*names.prefix, sys.executable, "-m", "reducer", *words]
            process, _ = cleanup.enter_context(
                serving(command, tmp_path / f"{host}.log", environment(**environ))
            )
            running.append(process)
        with Summing(tmp_path, "-", prefix=names.prefix, SAGEMAKER_BASE_DIR=str(tmp_path)) as ranks:
            ranks.go_on()
            ranks.stop()
            assert (
                "2 reducers (algo-3:50051, algo-4:50051; from SageMaker's resourceconfig.json)" in ranks.log
            )
        # Nothing stops them. They end with the job, because SageMaker would otherwise wait forever.
        assert [process.wait(30) for process in running] == [0, 0]


#: Builds the request of deploy/sagemaker/submit.py without AWS: the session is a stand-in, the rest is the SDK's own.
SAGEMAKER = """
import json, sys, tempfile
from pathlib import Path
from unittest import mock
from sagemaker.core.helper.session_helper import Session
from sagemaker.train.defaults import TrainDefaults

sys.path.insert(0, "deploy/sagemaker")
import submit

session = mock.MagicMock(spec=Session)
session.boto_region_name, session.default_bucket_prefix = "eu-west-1", None
session.boto_session = mock.MagicMock(region_name="eu-west-1")
session.default_bucket.return_value, session.upload_data.return_value = "bucket", "s3://bucket/source"
with tempfile.TemporaryDirectory() as source, mock.patch.object(TrainDefaults, "get_role", lambda role, **_: role):
    Path(source, "train.py").touch()
    role = "arn:aws:iam::123456789012:role/train"
    trainer = submit.trainer(role, source, "image", sagemaker_session=session)
    request = trainer._create_training_job_args()
groups = [group.model_dump() for group in request["resource_config"].instance_groups]
print(json.dumps({"groups": groups, "environment": request["environment"], "command": trainer.source_code.command}))
"""
