"""Abridged log output of NCCL 2.29: a rank of a ring over sockets; lines as in its issue 2057 and its sources."""

from __future__ import annotations

_INFO = "bench:100:100 [0] NCCL INFO "

_LINES = """\
ENV/Plugin: Could not find: libnccl-env.so
NCCL_SOCKET_IFNAME set by environment to eth0
Bootstrap: Using eth0:10.77.0.{host}<0>
cudaDriverVersion 13000
NCCL version 2.29.7+cuda13.0
NCCL git version master 3619159
NET/Plugin: Could not find: libnccl-net.so
NCCL_IB_DISABLE set by environment to 1.
Failed to initialize NET plugin IB
NET/Socket : Using [0]eth0:10.77.0.{host}<0>
Initialized NET plugin Socket
Assigned NET plugin Socket to comm
Using network Socket
[Rank {rank}] ncclCommInitRankConfig comm 0x55eb22a0 rank {rank} nranks 4 cudaDev 0 nvmlDev 0 busId 80 \
commId 0x2ef13c5ed0553a05 - Init START
RAS client listening socket at 127.0.0.1<28028>
Bootstrap timings total 1.927735 (create 0.000034, send 0.000107, recv 1.927205, ring 0.000036, delay 0.000000)
NCCL_P2P_DISABLE set by environment to 1
NCCL_SHM_DISABLE set by environment to 1.
comm 0x55eb22a0 rank {rank} nRanks 4 nNodes 4 localRanks 1 localRank 0 MNNVL 0
Channel 00/02 : 0 1 2 3
Channel 01/02 : 0 1 2 3
Trees [0] 1/-1/-1->0->-1 [1] -1/-1/-1->0->1
P2P Chunksize set to 131072
NCCL_PROTO set by environment to Simple
NCCL_ALGO set by environment to Ring
threadThresholds 8/8/64 | 32/8/64 | 512 | 512
2 coll channels, 2 collnet channels, 0 nvls channels, 2 p2p channels, 1 p2p channels per peer
ncclCommInitRankConfig comm 0x55eb22a0 rank {rank} nranks 4 cudaDev 0 nvmlDev 0 busId 80 \
commId 0x2ef13c5ed0553a05 - Init COMPLETE
Init timings - ncclCommInitRankConfig: rank {rank} nranks 4 total 2.13 (kernels 0.17, alloc 0.02, bootstrap 1.93)
Channel 00/0 : 3[0] -> 0[0] [receive] via NET/Socket/0
Channel 01/0 : 3[0] -> 0[0] [receive] via NET/Socket/0
Channel 00/0 : 0[0] -> 1[0] [send] via NET/Socket/0
Channel 01/0 : 0[0] -> 1[0] [send] via NET/Socket/0
Connected all rings, use ring PXN 0 GDR 0
AllReduce: 67108864 Bytes -> Algo RING proto SIMPLE channel{{Lo..Hi}}={{0..1}}
AllReduce: 67108864 Bytes -> Algo RING proto SIMPLE channel{{Lo..Hi}}={{0..1}}
"""


def socket_log(rank: int) -> str:
    """Return the log of one of four ranks, each on its own host."""
    return "".join(f"{_INFO}{line}\n" for line in _LINES.format(rank=rank, host=rank + 1).splitlines())
