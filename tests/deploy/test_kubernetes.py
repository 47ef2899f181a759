"""`deploy/kubernetes`: against Kubernetes' own schemas, and against what `reducer serve` and workers accept."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from reduction.discovery.address_forms import expand
from support.artefacts import DEPLOY, checked_settings, documents, in_tools, tool
from support.network.certificates import Authority

needs_kubectl = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is missing")

ROUND_TRIP = """
import json, sys
import kubeflow_trainer_api.models as models
name, document = json.load(sys.stdin)
print(json.dumps(getattr(models, name).from_dict(document).to_dict()))
"""


def built(folder: str) -> list[dict[str, Any]]:
    """Return what `kubectl apply -k` would send."""
    command = ["kubectl", "kustomize", str(DEPLOY / "kubernetes" / folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def validate(objects: list[dict[str, Any]], tmp_path: Any) -> None:
    """Check objects against Kubernetes' schemas; unknown fields are errors."""
    path = tmp_path / "objects.yaml"
    path.write_text(yaml.safe_dump_all(objects))
    command = [tool("kubernetes-validate"), "--strict", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (done.stdout + done.stderr).count("passed for resource") == len(objects), done.stderr


def jobset_spec(path: str) -> dict[str, Any]:
    """Return the JobSet of an artefact, or the one in a runtime's template."""
    [document] = documents(path)
    spec: dict[str, Any] = document["spec"]
    return spec["template"]["spec"] if document["kind"] == "ClusterTrainingRuntime" else spec


def jobs_of(path: str) -> dict[str, dict[str, Any]]:
    """Return the JobSet's jobs by name."""
    return {job["name"]: job for job in jobset_spec(path)["replicatedJobs"]}


def pod_of(job: dict[str, Any]) -> dict[str, Any]:
    pod: dict[str, Any] = job["template"]["spec"]["template"]["spec"]
    return pod


@needs_kubectl
@pytest.mark.parametrize("folder", ["base", "monitoring", "tls"])
def test_kustomize_builds_valid_objects(folder: str, tmp_path: Any) -> None:
    objects = built(folder)
    kinds = {each["kind"] for each in objects}
    assert {"StatefulSet", "Service", "PodDisruptionBudget", "NetworkPolicy"} <= kinds
    assert ("ServiceMonitor" in kinds) == (folder == "monitoring")
    # A ServiceMonitor's schema is the Prometheus operator's.
    validate([each for each in objects if each["kind"] != "ServiceMonitor"], tmp_path)


def test_an_unknown_field_is_found(tmp_path: Any) -> None:
    [stateful_set] = documents("kubernetes/base/statefulset.yaml")
    stateful_set["spec"]["template"]["spec"]["containers"][0]["readynessProbe"] = {}
    with pytest.raises(AssertionError, match="readynessProbe"):
        validate([stateful_set], tmp_path)


@needs_kubectl
def test_selectors_find_the_pods() -> None:
    objects = {each["kind"]: each for each in built("monitoring")}
    pods = objects["StatefulSet"]["spec"]
    labels = pods["template"]["metadata"]["labels"].items()
    assert objects["StatefulSet"]["spec"]["serviceName"] == objects["Service"]["metadata"]["name"]
    assert objects["Service"]["spec"]["selector"].items() <= labels
    for kind, key in (("PodDisruptionBudget", "selector"), ("NetworkPolicy", "podSelector")):
        assert objects[kind]["spec"][key]["matchLabels"].items() <= labels
    monitored = objects["ServiceMonitor"]["spec"]["selector"]["matchLabels"].items()
    assert monitored <= objects["Service"]["metadata"]["labels"].items()
    ports = {port["name"] for port in objects["Service"]["spec"]["ports"]}
    assert {end["port"] for end in objects["ServiceMonitor"]["spec"]["endpoints"]} <= ports


def selectors_of(value: Any, where: str = "") -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the labels that each pod selector in a document requires, with its path in the document."""
    for key, each in value.items() if isinstance(value, dict) else enumerate(value):
        if key in ("selector", "podSelector", "labelSelector"):
            assert "matchExpressions" not in each, "this test cannot evaluate them"
            yield f"{where}.{key}", each.get("matchLabels", each)
        elif isinstance(each, dict | list):
            yield from selectors_of(each, f"{where}.{key}")


def pods_of(document: dict[str, Any]) -> Iterator[dict[str, str]]:
    """Yield the labels of each kind of pod that a document creates, including those added by its controllers."""
    kind, name, spec = document["kind"], document["metadata"]["name"], document["spec"]
    if kind == "ClusterTrainingRuntime":  # a TrainJob creates a JobSet with its own name
        yield from pods_of({"kind": "JobSet", "metadata": {"name": "any"}, "spec": spec["template"]["spec"]})
    for job in spec.get("replicatedJobs", ()) if kind == "JobSet" else ():
        made = {
            "kind": "Job",
            "metadata": {"name": f"{name}-{job['name']}-0"},
            "spec": job["template"]["spec"],
        }
        added = {"jobset-name": name, "replicatedjob-name": job["name"]}
        for labels in pods_of(made):
            yield labels | {f"jobset.sigs.k8s.io/{key}": value for key, value in added.items()}
    if kind in ("StatefulSet", "Job"):
        labels = spec["template"].get("metadata", {}).get("labels", {})
        yield labels | (
            dict.fromkeys(("job-name", "batch.kubernetes.io/job-name"), name) if kind == "Job" else {}
        )


def test_selectors_find_only_their_own_pods_with_all_manifests_in_one_namespace() -> None:
    folder = DEPLOY / "kubernetes"
    # Groups that belong together: the files of a folder, or a single file.
    everything = [
        (path.parent.name if path.parent != folder else path.name, document)
        for path in sorted(folder.rglob("*.yaml"))
        for document in documents(str(path.relative_to(DEPLOY)))
        if document["kind"] not in ("Kustomization", "ServiceMonitor")
    ]
    pods = [(owner, labels) for owner, document in everything for labels in pods_of(document)]
    assert sorted(owner for owner, _ in pods) == [
        "base", *["jobset.yaml"] * 2, *["trainer-runtime.yaml"] * 2, "training.yaml"
    ]  # fmt: skip
    found = {
        (owner, document["kind"], where): {of for of, labels in pods if wanted.items() <= labels.items()}
        for owner, document in everything
        for where, wanted in selectors_of(document)
    }
    let_in = found.pop(("base", "NetworkPolicy", ".spec.ingress.0.from.0.podSelector"))
    assert let_in == {"training.yaml"}
    assert len(found) == 8
    assert {place: owners for place, owners in found.items() if owners != {place[0]}} == {}


def test_training_pods_are_admitted_and_look_for_the_reducer_pods(tmp_path: Any) -> None:
    service, job = documents("kubernetes/training.yaml")
    validate([service, job], tmp_path)
    [stateful_set] = documents("kubernetes/base/statefulset.yaml")
    [policy] = documents("kubernetes/base/network-policy.yaml")
    template = job["spec"]["template"]
    pod, [container] = template["spec"], template["spec"]["containers"]
    assert (
        policy["spec"]["ingress"][0]["from"][0]["podSelector"]["matchLabels"]
        == template["metadata"]["labels"]
    )
    variables = {each["name"]: each.get("value") for each in container["env"]}
    name, subdomain = stateful_set["metadata"]["name"], stateful_set["spec"]["serviceName"]
    pods = [f"{name}-{n}.{subdomain}:50051" for n in range(stateful_set["spec"]["replicas"])]
    assert list(expand(variables["REDUCTION_REDUCERS"])) == pods
    assert f"--master-addr={job['metadata']['name']}-0.{pod['subdomain']}" in container["command"]
    assert f"--nnodes={job['spec']['completions']}" in container["command"]
    assert pod["subdomain"] == service["metadata"]["name"]
    [mount] = container["volumeMounts"]
    assert variables["REDUCTION_TOKEN_FILE"] == f"{mount['mountPath']}/tokens"
    theirs = stateful_set["spec"]["template"]["spec"]["volumes"][0]["secret"]["secretName"]
    assert pod["volumes"][0]["secret"]["secretName"] == theirs


def test_the_stateful_set_starts_a_reducer(tmp_path: Any) -> None:
    [stateful_set] = documents("kubernetes/base/statefulset.yaml")
    pod = stateful_set["spec"]["template"]["spec"]
    [container] = pod["containers"]
    tokens = tmp_path / "tokens"
    tokens.write_text(f"*:{'a' * 64}\n")
    tokens.chmod(0o400)
    mounted = container["volumeMounts"][0]["mountPath"]
    settings = checked_settings(
        [word.replace(f"{mounted}/tokens", str(tokens)) for word in container["args"]]
    )
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert settings["bind"] == f"0.0.0.0:{ports['grpc']}"
    assert settings["metrics-port"] == ports["metrics"]
    assert settings["insecure"] is False
    assert str(settings["processes"]) == container["resources"]["limits"]["cpu"]
    assert pod["terminationGracePeriodSeconds"] >= settings["drain-timeout"] + 10


def test_with_tls_the_reducer_has_a_certificate_beside_the_tokens(tmp_path: Any) -> None:
    [overlay] = documents("kubernetes/tls/kustomization.yaml")
    [stateful_set] = documents("kubernetes/base/statefulset.yaml")
    assert overlay["resources"] == ["../base"]
    [patch] = overlay["patches"]
    assert patch["target"] == {"kind": stateful_set["kind"], "name": stateful_set["metadata"]["name"]}
    [operation] = yaml.safe_load(patch["patch"])
    [container] = stateful_set["spec"]["template"]["spec"]["containers"]
    # It would replace the existing value.
    assert "env" not in container
    assert operation["path"] == "/spec/template/spec/containers/0/env"
    mounted = container["volumeMounts"][0]["mountPath"]
    files = Authority(tmp_path).files("reducer-0.reducers")
    there = {"ca.pem": files.ca, "reducer.pem": files.cert, "reducer.key": files.key}
    variables = {
        each["name"]: there[each["value"].removeprefix(f"{mounted}/")] for each in operation["value"]
    }
    settings = checked_settings(["serve", "--bind=0.0.0.0:50051"], **variables)
    assert {settings[name] for name in ("tls-ca", "tls-cert", "tls-key")} == set(there.values())


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("kubernetes/jobset.yaml", "JobsetV1alpha2JobSet"),
        ("kubernetes/trainer-runtime.yaml", "TrainerV1alpha1ClusterTrainingRuntime"),
    ],
)
def test_jobsets_have_only_known_fields(path: str, kind: str, tmp_path: Any) -> None:
    """A model drops unknown fields, so a document that comes back unchanged has only known ones."""
    [document] = documents(path)
    back = in_tools(ROUND_TRIP, "kubeflow_trainer_api", given=[kind, document])
    assert without_default_protocols(back) == document
    pods = [
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": _complete(job)}
        for name, job in jobs_of(path).items()
    ]
    validate(pods, tmp_path)


def without_default_protocols(value: Any) -> Any:
    """Return a document without `protocol: TCP`, which the models add to ports."""
    if isinstance(value, dict):
        return {
            key: without_default_protocols(each)
            for key, each in value.items()
            if (key, each) != ("protocol", "TCP")
        }
    return [without_default_protocols(each) for each in value] if isinstance(value, list) else value


def test_the_train_job_has_only_known_fields() -> None:
    [document] = documents("kubernetes/trainjob.yaml")
    assert (
        in_tools(ROUND_TRIP, "kubeflow_trainer_api", given=["TrainerV1alpha1TrainJob", document]) == document
    )
    [runtime] = documents("kubernetes/trainer-runtime.yaml")
    assert document["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]


def test_the_models_drop_unknown_fields() -> None:
    [document] = documents("kubernetes/jobset.yaml")
    document["spec"]["succesPolicy"] = document["spec"].pop("successPolicy")
    back = in_tools(ROUND_TRIP, "kubeflow_trainer_api", given=["JobsetV1alpha2JobSet", document])
    assert without_default_protocols(back) != document


def _complete(job: dict[str, Any]) -> dict[str, Any]:
    """Return a Job's spec with the fields that Trainer adds."""
    spec: dict[str, Any] = json.loads(json.dumps(job["template"]["spec"]))
    spec["template"]["spec"].setdefault("restartPolicy", "Never")
    return spec


@pytest.mark.parametrize("path", ["kubernetes/jobset.yaml", "kubernetes/trainer-runtime.yaml"])
def test_training_starts_after_the_reducers_and_ends_the_set(path: str) -> None:
    spec, jobs = jobset_spec(path), jobs_of(path)
    [training] = [name for name in jobs if name != "reducer"]
    assert next(iter(jobs)) == "reducer", "a job can only depend on those before it"
    assert jobs[training]["dependsOn"] == [{"name": "reducer", "status": "Ready"}]
    assert spec["successPolicy"] == {"operator": "All", "targetReplicatedJobs": [training]}


@pytest.mark.parametrize(
    ("path", "name"), [("kubernetes/jobset.yaml", "train"), ("kubernetes/trainer-runtime.yaml", "any")]
)
def test_workers_look_for_the_reducer_pods(path: str, name: str) -> None:
    jobs = jobs_of(path)
    reducer = jobs.pop("reducer")
    [training] = jobs.values()
    [container] = pod_of(training)["containers"]
    variables = {each["name"]: each.get("value", name) for each in container["env"]}
    text = variables["REDUCTION_REDUCERS"].replace("$(JOBSET)", variables.get("JOBSET", name))
    [serving] = pod_of(reducer)["containers"]
    port = next(each["containerPort"] for each in serving["ports"] if each["name"] == "grpc")
    pods = range(reducer["template"]["spec"]["completions"])
    assert list(expand(text)) == [f"{name}-reducer-0-{pod}.{name}:{port}" for pod in pods]
    settings = checked_settings(serving["args"])
    assert settings["bind"] == f"0.0.0.0:{port}"
    assert pod_of(reducer)["terminationGracePeriodSeconds"] >= settings["drain-timeout"] + 10


def test_the_runtime_marks_the_job_that_trains() -> None:
    label = jobs_of("kubernetes/trainer-runtime.yaml")["node"]["template"]["metadata"]["labels"]
    assert label == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
