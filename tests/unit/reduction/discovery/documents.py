"""Documents in the platforms' formats, and others that have the same words in other places."""

import json

from hypothesis import strategies as st

#: The variables of a machine on neither platform.
NOBODY = {"SAGEMAKER_BASE_DIR": "/nowhere"}


def cluster_spec(pools, pool="evaluator", index=0, **task):
    """Return Vertex AI's CLUSTER_SPEC."""
    task = {"type": pool, "index": index, **task}
    return json.dumps(
        {"cluster": pools, "environment": "cloud", "task": task, "job": {"worker_pool_specs": []}}
    )


def resource_config(groups, host="algo-1", key="current_group_name"):
    """Return SageMaker's resourceconfig.json; `key` holds the host's own group."""
    return json.dumps(
        {
            "current_host": host,
            "current_instance_type": "ml.g5.xlarge",
            key: "gpu",
            "hosts": sorted(host for hosts in groups.values() for host in hosts),
            "instance_groups": [
                {"instance_group_name": name, "instance_type": "ml.g5.xlarge", "hosts": hosts}
                for name, hosts in groups.items()
            ],
            "network_interface_name": "eth0",
            "topology": None,
        }
    )


def of_vertex(pools, *task):
    """Return the variables of a Vertex AI machine."""
    return NOBODY | {"CLUSTER_SPEC": cluster_spec(pools, *task)}


def of_sagemaker(groups, host="algo-1"):
    """Return the variables of a SageMaker machine."""
    return {"SM_RESOURCE_CONFIG": resource_config(groups, host)}


def rubbish(*words):
    """Return strategies of strings, some of which are JSON with these words as keys."""
    scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
    document = st.recursive(
        scalars,
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(words), inner, max_size=3)
        ),
    )
    return st.text() | document.map(json.dumps) | document.map(lambda inner: json.dumps({words[0]: inner}))
