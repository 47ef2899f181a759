"""The environment of NCCL in a rank, and NCCL's requirements on the machine.

NCCL up to 2.29 refuses two ranks on one GPU if their host and bus ids are the same (init.cc), so each
rank gets its own host id. Sockets are then the only transport between ranks, and sockets use the shaped
links. From 2.30 on, a variable allows several ranks on a GPU. Without these settings, ranks with
separate GPUs would use NVLink or shared memory instead of the links.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

#: From this version on, a variable allows several ranks on one GPU.
MULTI_RANK_VERSION = (2, 30)
ALGORITHM, PROTOCOL = "Ring", "Simple"
_SOCKETS_ONLY = {
    "NCCL_NET": "Socket",
    "NCCL_IB_DISABLE": "1",
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_MNNVL_ENABLE": "0",
    "NCCL_ALGO": ALGORITHM,
    "NCCL_PROTO": PROTOCOL,
}


class GpuMissing(Exception):
    """This machine cannot run NCCL as required. The message names the missing part."""


def check_gpus(gpus: int) -> None:
    """Check that NCCL can run on this machine.

    Raises:
        GpuMissing: something is missing.
    """
    if not torch.cuda.is_available():
        raise GpuMissing(f"NCCL needs a GPU, torch {torch.__version__} sees none")
    if not dist.is_nccl_available():
        raise GpuMissing(f"torch {torch.__version__} is built without NCCL")
    if (count := torch.cuda.device_count()) < gpus:
        raise GpuMissing(f"the NCCL ring needs a GPU for each of {gpus} ranks, this machine has {count}")


def variables(
    rank: int, interface: str, log: str, *, sockets: bool, version: tuple[int, ...]
) -> dict[str, str]:
    """Return the environment of a rank's NCCL.

    Args:
        rank: the rank.
        interface: the network interface for sockets.
        log: the file that NCCL writes and `nccl_log` reads.
        sockets: whether NCCL may only use a ring over sockets. Otherwise NCCL chooses.
        version: NCCL's version.
    """
    environment = {
        "NCCL_SOCKET_IFNAME": interface,
        "NCCL_DEBUG": "INFO",
        # ENV logs the variables that NCCL reads, and TUNING its choice for each collective.
        "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV,TUNING",
        "NCCL_DEBUG_FILE": log,
    }
    if sockets:
        environment |= _SOCKETS_ONLY | {"NCCL_HOSTID": f"h{rank}"}
        if version >= MULTI_RANK_VERSION:
            environment["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
    return environment
