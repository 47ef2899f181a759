"""The kernel's CPU time for bytes over loopback TCP, without sums, copies or a protocol, with one call per chunk.

    python -m benchmarks.micro.floor --size 1024MiB --chunks 64KiB,256KiB,1MiB

On loopback the CPU is the bottleneck. A worker sends and receives every byte once, so it needs at least
the sum of both columns. A reducer of n workers needs n times that. Compare these numbers with the CPU
columns of the benchmarks' table.
"""

from __future__ import annotations

import multiprocessing
import socket
import statistics
import time
from multiprocessing.connection import Connection

from benchmarks.method.experiment import Line, listed, show, size

GB = 1e9


def sink(listener: socket.socket, answers: Connection, nbytes: int, chunk: int) -> None:
    """Receive everything once, and answer with the CPU seconds used."""
    peer, _ = listener.accept()
    buffer = memoryview(bytearray(chunk))
    begin, count = time.process_time(), 0
    while count < nbytes:
        received = peer.recv_into(buffer[: min(chunk, nbytes - count)], 0, socket.MSG_WAITALL)
        if not received:
            raise ConnectionResetError(f"the sender ended after {count} of {nbytes} bytes")
        count += received
    answers.send(time.process_time() - begin)


def move(nbytes: int, chunk: int) -> tuple[float, float]:
    """Return the CPU seconds for sending and for receiving `nbytes`."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = context.Process(target=sink, args=(listener, theirs, nbytes, chunk), daemon=True)
        process.start()
        with socket.create_connection(listener.getsockname()) as peer:
            payload = memoryview(bytearray(chunk))
            begin = time.process_time()
            for start in range(0, nbytes, chunk):
                peer.sendall(payload[: nbytes - start])
            sent_s = time.process_time() - begin
            received_s = ours.recv()
    process.join()
    return sent_s, received_s


def measure(nbytes: int, chunks: list[int], rounds: int) -> list[dict[str, float]]:
    """Return a row for each chunk size with the medians over the rounds, in CPU seconds per GB."""
    rows = []
    for chunk in chunks:
        moved = [move(nbytes, chunk) for _ in range(rounds)]
        rows.append(
            {
                "chunk_bytes": chunk,
                "send_cpu_s_per_gb": statistics.median(sent for sent, _ in moved) / nbytes * GB,
                "receive_cpu_s_per_gb": statistics.median(received for _, received in moved) / nbytes * GB,
            }
        )
    return rows


COLUMNS = {
    "chunk": lambda row: f"{row['chunk_bytes'] // 1024} KiB",
    "send, CPU s/GB": "{send_cpu_s_per_gb:.2f}",
    "receive, CPU s/GB": "{receive_cpu_s_per_gb:.2f}",
    "both": lambda row: f"{row['send_cpu_s_per_gb'] + row['receive_cpu_s_per_gb']:.2f}",
}


def main() -> None:
    line = Line("micro.floor", __doc__, size="512MiB", rounds=5, json=None)
    chunks = "bytes of a call, comma-separated"
    line.add_argument("--chunks", type=listed(size), default="64KiB,256KiB,1MiB", help=chunks)
    given = line.parse_args()
    show(given, COLUMNS, measure(given.size, given.chunks, given.rounds))


if __name__ == "__main__":
    main()
