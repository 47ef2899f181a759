"""`deploy/vertex`: the job and script as parsed by Google's own library, without a network."""

from __future__ import annotations

from typing import Any

import pytest
from support.artefacts import DEPLOY, checked_settings, documents, in_tools

#: The port of every replica.
PORT = 2222

#: Reads a job as `gcloud ai custom-jobs create --config` does: an unknown field is an error.
JOB = """
import json, sys
from google.cloud.aiplatform_v1.types import CustomJobSpec
from google.protobuf import json_format

document = json.load(sys.stdin)
print(json.dumps(json_format.MessageToDict(json_format.ParseDict(document, CustomJobSpec.pb()()))))
"""
#: The SDK's request for the script, without the actual call.
SUBMIT = """
import json, sys
from unittest import mock
from google.auth.credentials import AnonymousCredentials
from google.cloud import aiplatform

sys.path.insert(0, "deploy/vertex")
import submit

aiplatform.init(
    project="p", location="us-central1", staging_bucket="gs://b", credentials=AnonymousCredentials()
)
with mock.patch("google.cloud.aiplatform.training_jobs._TrainingJob._run_job") as run:
    submit.submit("training", "reducer")
print(json.dumps(run.call_args.kwargs["training_task_inputs"]["worker_pool_specs"]))
"""


@pytest.mark.full
def test_the_job_has_known_fields_only() -> None:
    [job] = documents("vertex/job.yaml")
    back = in_tools(JOB, "google.cloud.aiplatform", given=job)
    for pool in back["workerPoolSpecs"]:
        pool["replicaCount"] = int(pool["replicaCount"])
    assert back == job


def test_the_pools_of_the_job() -> None:
    [job] = documents("vertex/job.yaml")
    first, others, reducers = job["workerPoolSpecs"]
    assert first["replicaCount"] == 1, "pool 0 has exactly one replica"
    assert first["containerSpec"] == others["containerSpec"], "the same command on all hosts"
    settings = checked_settings(reducers["containerSpec"]["args"])
    assert settings["bind"] == f"0.0.0.0:{PORT}"


@pytest.mark.full
def test_the_script_fills_the_pool_of_googles_reduction_server() -> None:
    pools: list[dict[str, Any]] = in_tools(SUBMIT, "google.cloud.aiplatform")
    [job] = documents("vertex/job.yaml")
    assert [pool["replica_count"] for pool in pools] == [
        pool["replicaCount"] for pool in job["workerPoolSpecs"]
    ]
    command = job["workerPoolSpecs"][0]["containerSpec"]["command"]
    assert [pool["containerSpec"] for pool in pools[:2]] == [{"imageUri": "training", "command": command}] * 2
    assert pools[2]["container_spec"] == {"image_uri": "reducer"}, "no arguments and no variables"


def test_the_pools_image_needs_no_arguments() -> None:
    [line] = [line for line in (DEPLOY / "vertex/Dockerfile").read_text().splitlines() if line[:3] == "ENV"]
    variables = dict(word.split("=") for word in line.split()[1:])
    settings = checked_settings(["serve"], **variables)
    assert settings["bind"] == f"0.0.0.0:{PORT}"
    assert settings["insecure"] is True
