"""Submit a training with reducers to Vertex AI, by the parameters that its SDK has for Google's Reduction Server.

    pip install google-cloud-aiplatform
    python deploy/vertex/submit.py --project PROJECT --bucket gs://BUCKET \
        --training us-docker.pkg.dev/PROJECT/training/training:latest \
        --reducer us-docker.pkg.dev/PROJECT/training/reduction-server:vertex

The SDK hands the reducers' pool an image and nothing else, so that must be one that `deploy/vertex/Dockerfile` made.
"""

from __future__ import annotations

import argparse

from google.cloud import aiplatform


def submit(training: str, reducer: str, workers: int = 4, reducers: int = 12) -> None:
    """Run the training to its end; `aiplatform.init` has been called.

    Args:
        training: image of the training, with torch, this project and train.py.
        reducer: image of the reducers.
        workers: machines that train.
        reducers: machines that reduce, about as many as carry as much as the workers.
    """
    job = aiplatform.CustomContainerTrainingJob(
        display_name="train",
        container_uri=training,
        command=["reducer", "run", "--", "torchrun", "--nproc-per-node", "8", "train.py"],
    )
    job.run(
        replica_count=workers,
        machine_type="a2-highgpu-8g",
        accelerator_type="NVIDIA_TESLA_A100",
        accelerator_count=8,
        reduction_server_replica_count=reducers,
        reduction_server_machine_type="n1-highcpu-16",
        reduction_server_container_uri=reducer,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--project", required=True)
    parser.add_argument("--location", default="us-central1")
    parser.add_argument("--bucket", required=True)
    parser.add_argument("--training", required=True)
    parser.add_argument("--reducer", required=True)
    arguments = parser.parse_args()
    aiplatform.init(project=arguments.project, location=arguments.location, staging_bucket=arguments.bucket)
    submit(arguments.training, arguments.reducer)
