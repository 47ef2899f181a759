"""The CPU time of the kernel for bytes over loopback TCP: no sum, no copy, no protocol, one call per chunk.

    python -m benchmarks.micro.floor --size 1024MiB --chunks 64KiB,256KiB,1MiB

On loopback the CPU is the limit. A worker sends and receives every byte once, so it needs at least
the sum of both columns. A reducer of n workers needs n times that. Compare the CPU columns of the
benchmarks' table with these numbers.
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import statistics
import time
from multiprocessing.connection import Connection
from pathlib import Path

from benchmarks.method import results
from benchmarks.method.table import markdown
from benchmarks.shaped.__main__ import size, sizes

GB = 1e9


def sink(listener: socket.socket, answers: Connection, nbytes: int, chunk: int) -> None:
    """Receive everything once, and answer with the CPU seconds that it took."""
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
    """Return the CPU seconds of sending and of receiving `nbytes`."""
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
    """Return a row for each chunk size: medians of the rounds, in CPU seconds per GB."""
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


def cells(row: dict[str, float]) -> list[str]:
    """Return the cells of a row of the printed table."""
    send, receive = row["send_cpu_s_per_gb"], row["receive_cpu_s_per_gb"]
    return [f"{row['chunk_bytes'] // 1024} KiB", f"{send:.2f}", f"{receive:.2f}", f"{send + receive:.2f}"]


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.micro.floor",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--size", type=size, default=size("512MiB"))
    parser.add_argument(
        "--chunks", type=sizes, default="64KiB,256KiB,1MiB", help="bytes of a call, comma-separated"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    arguments = parser.parse_args()
    head = ["chunk", "send, CPU s/GB", "receive, CPU s/GB", "both"]
    rows = measure(arguments.size, arguments.chunks, arguments.rounds)
    print("\n".join(markdown(head, [cells(row) for row in rows])))
    if arguments.json is not None:
        settings = {"size_bytes": arguments.size, "rounds": arguments.rounds}
        results.write(arguments.json, settings, rows)


if __name__ == "__main__":
    main()
