"""Submit a training with reducers to SageMaker: a heterogeneous cluster of two instance groups.

    pip install sagemaker            # 3 or newer
    python deploy/sagemaker/submit.py --role ARN --source FOLDER --image IMAGE

All hosts run the same command in the same image, so it has torch and this project. `reducer run` reduces on the hosts
of the group `reducers`, and trains on the others. The reducers end half a minute after the training has left.
"""

from __future__ import annotations

import argparse

from sagemaker.train import ModelTrainer
from sagemaker.train.configs import Compute, InstanceGroup, SourceCode

COMMAND = "reducer run -- torchrun --nproc-per-node 1 train.py"


def trainer(role: str, source: str, image: str, **more: object) -> ModelTrainer:
    """Return the training. It is not submitted yet.

    Args:
        role: ARN of the role that the training has.
        source: folder with train.py.
        image: image of all hosts.
        more: further arguments for ModelTrainer, such as sagemaker_session.
    """
    groups = [
        InstanceGroup(instance_group_name="workers", instance_type="ml.g5.8xlarge", instance_count=4),
        InstanceGroup(instance_group_name="reducers", instance_type="ml.c6in.8xlarge", instance_count=4),
    ]
    return ModelTrainer(
        role=role,
        training_image=image,
        source_code=SourceCode(source_dir=source, command=COMMAND),
        compute=Compute(instance_groups=groups),
        environment={"REDUCER_INSECURE": "1", "REDUCER_EXIT_AFTER_JOB": "30"},
        base_job_name="train",
        **more,
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    for name in ("role", "source", "image"):
        parser.add_argument(f"--{name}", required=True)
    arguments = parser.parse_args()
    trainer(arguments.role, arguments.source, arguments.image).train()
