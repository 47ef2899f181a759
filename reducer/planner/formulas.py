"""Calculate the time of a training step with a ring and with reducers.

n machines have the ranks, k have reducers. Links carry `b` bytes of payload per second each way, and a
step averages M bytes in buckets. A bucket of m bytes takes

    T(m) = m max(links, CPU of a rank, CPU of the reducers)

The term for links is from `reduction/shares.py`, which has the source of its formula; for a ring it is
2 (n - 1) / n / b. The CPU terms were measured per byte, see below.

DDP issues bucket i when its gradients are ready, at r_i, and buckets follow each other on the links:

    f_i = max(f_(i-1), r_i) + T(m_i)        step = f_last + latency

C is the time of a step without communication. A backward pass takes about two thirds of it, because
it computes gradients of activations and of weights where the forward pass computes activations
(Kaplan et al., "Scaling Laws for Neural Language Models", 2020, section 2.1). Its gradients are assumed
to become ready evenly.

docs/measured.md compares this with measurements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from reduction.shares import Machine, ring_time, split

#: Overhead of Ethernet, IP and TCP on 1448 bytes of payload, with frames of 1500 bytes.
OVERHEAD = 1514 / 1448
#: CPU seconds per GB of gradients. All are from `pytest benchmarks/` over loopback, AMD EPYC, Python 3.11, 64 MiB at
#: n = 2 and 4: 0.69 and 0.80 for a rank's one message thread, 0.53 and 0.74 for a rank of Gloo's ring, and 0.39 and
#: 0.47 for reducers, per GB received.
RANK_CPU_S_PER_GB, RING_CPU_S_PER_GB, REDUCER_CPU_S_PER_GB = 0.8, 0.75, 0.5
#: As many chunks are in flight as arrive within this time, so the last one's result arrives this much later.
#: It is the target latency of the TCP plane.
LATENCY_S = 0.016
#: Fraction of a step's computation after which the first gradients are ready.
FORWARD_PART = 1 / 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A training and its machines."""

    #: Machines with ranks; each has one link, and sends one copy of the gradients.
    workers: int
    #: Ranks per machine. If there are several, each sends its part of the gradients, in hierarchical mode.
    ranks_per_worker: int = 1
    #: Bytes of averaged gradients per step.
    gradient_bytes: float
    #: Mbit/s of a worker's link each way.
    worker_mbit: float
    #: Mbit/s of a reducer's link each way.
    reducer_mbit: float
    #: Cores of a reducer's machine, one per serving process.
    reducer_cores: int
    #: Seconds of a step without communication.
    compute_s: float = 0.0
    #: Maximum bytes of a bucket, DDP's bucket_cap_mb.
    bucket_bytes: float = 25 << 20
    #: Round trip to another machine, in seconds.
    round_trip_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Step:
    """The predicted time of a step, in seconds."""

    #: Time of all communication without concurrent computation.
    communication_s: float
    #: Part of the communication that the step waits for.
    exposed_s: float
    #: Time from the beginning of a step to that of the next one.
    total_s: float
    #: The bottleneck of the communication.
    bound: str


def ring_step(training: Training) -> Step:
    """Return the step with a ring all-reduce, whose machines each wait 2 (n - 1) times for their neighbours."""
    machines = [Machine(1, 0, _bytes_per_s(training.worker_mbit))] * training.workers
    per_byte = {
        "links": ring_time(machines),
        "a rank's CPU": RING_CPU_S_PER_GB / 1e9 / training.ranks_per_worker,
    }
    return _step(training, per_byte, each_s=(training.workers - 1) * training.round_trip_s)


def reducer_step(training: Training, reducers: int) -> Step:
    """Return the step with reducers. A reducer on each worker's host helps where that makes the step shorter.

    Args:
        training: the training.
        reducers: number of machines with only reducers; with none, the workers' hosts do all the work.
    """
    rates = _bytes_per_s(training.worker_mbit), _bytes_per_s(training.reducer_mbit)
    best = split([Machine(1, 1, rates[0])] * training.workers + [Machine(0, 1, rates[1])] * reducers)
    taken_in = training.workers * max(best.shares[training.workers :], default=0.0)
    per_byte = {
        "links": best.seconds_per_byte,
        "a rank's CPU": RANK_CPU_S_PER_GB / 1e9 / training.ranks_per_worker,
        "the reducers' CPU": taken_in * REDUCER_CPU_S_PER_GB / 1e9 / training.reducer_cores,
    }
    return _step(training, per_byte, once_s=LATENCY_S + training.round_trip_s)


def measured_step(training: Training, seconds_per_byte: float) -> Step:
    """Return the step with reducers, given the measured time of all ranks together per byte of gradients."""
    per_byte = {"what was measured": seconds_per_byte}
    return _step(training, per_byte, once_s=LATENCY_S + training.round_trip_s)


def reducers_for_full_gain(training: Training) -> int:
    """Return the number of reducers that can receive the full rate of all workers' links."""
    rate = min(_bytes_per_s(training.reducer_mbit), training.reducer_cores * 1e9 / REDUCER_CPU_S_PER_GB)
    return math.ceil(training.workers * _bytes_per_s(training.worker_mbit) / rate)


def _bytes_per_s(mbit: float) -> float:
    """Return the bytes of payload per second that a link of this many Mbit/s carries."""
    return mbit * 1e6 / 8 / OVERHEAD


def _step(training: Training, per_byte: dict[str, float], each_s: float = 0.0, once_s: float = 0.0) -> Step:
    """Return a step.

    Args:
        training: the training.
        per_byte: seconds per byte of each possible bottleneck.
        each_s: additional seconds per bucket.
        once_s: seconds from the last push to its result; less is in flight for a small sum.
    """
    bound = max(per_byte, key=lambda name: per_byte[name])
    buckets = max(1, math.ceil(training.gradient_bytes / training.bucket_bytes))
    bucket_s = training.gradient_bytes / buckets * per_byte[bound] + each_s
    once_s = min(once_s, buckets * bucket_s)
    forward_s = training.compute_s * FORWARD_PART
    done = 0.0
    for number in range(1, buckets + 1):
        ready = forward_s + (training.compute_s - forward_s) * number / buckets
        done = max(done, ready) + bucket_s
    total = done + once_s
    return Step(buckets * bucket_s + once_s, total - training.compute_s, total, bound)
