"""What NCCL is told in a rank, and what it needs.

NCCL refuses two ranks on one GPU if host and bus id are the same (init.cc, up to 2.29), so each rank is given a host id
of its own: then sockets are the only way from one to the other, which is what shaped links are to carry. From 2.30 on
a variable allows it. Without all this, ranks with GPUs of their own would talk past the links, over NVLink or memory.
"""

from __future__ import annotations

import torch
import torch.distributed as dist

#: From this version on several ranks on one GPU are allowed explicitly.
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
    """This machine cannot run NCCL that way; the message says what is missing."""


def check_gpus(gpus: int) -> None:
    """Find out whether NCCL can run here.

    Raises:
        GpuMissing: it cannot.
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
        rank: its number.
        interface: what sockets use.
        log: file that it writes; `nccl_log` reads it.
        sockets: whether it is to be a ring over nothing but sockets; else it chooses by itself.
        version: NCCL's.
    """
    found = {
        "NCCL_SOCKET_IFNAME": interface,
        "NCCL_DEBUG": "INFO",
        # ENV says what it was told, TUNING what it has chosen for each collective.
        "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV,TUNING",
        "NCCL_DEBUG_FILE": log,
    }
    if sockets:
        found |= _SOCKETS_ONLY | {"NCCL_HOSTID": f"h{rank}"}
        if version >= MULTI_RANK_VERSION:
            found["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
    return found
