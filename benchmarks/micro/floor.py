"""What the kernel alone takes to move bytes over loopback TCP: no sum, no copy, no protocol, one call per chunk.

    python -m benchmarks.micro.floor --size 1024MiB --chunks 64KiB,256KiB,1MiB

On loopback the CPU is the limit. A worker sends and receives every byte once, so it cannot take less than both
together; a reducer of n workers takes n times that. Rows of the benchmarks' table are to be read against it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import statistics
import time
from multiprocessing.connection import Connection

from benchmarks.method.table import markdown
from benchmarks.shaped.__main__ import size

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


def rows(nbytes: int, chunks: list[int], rounds: int) -> list[list[str]]:
    """Return what is printed of each chunk size: medians of so many rounds, in CPU seconds per GB."""
    lines = []
    for chunk in chunks:
        moved = [move(nbytes, chunk) for _ in range(rounds)]
        send = statistics.median(sent for sent, _ in moved) / nbytes * GB
        receive = statistics.median(received for _, received in moved) / nbytes * GB
        lines.append([f"{chunk // 1024} KiB", f"{send:.2f}", f"{receive:.2f}", f"{send + receive:.2f}"])
    return lines


def sizes(text: str) -> list[int]:
    """Return the bytes of a comma-separated list."""
    return [size(part) for part in text.split(",")]


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
    arguments = parser.parse_args()
    head = ["chunk", "send, CPU s/GB", "receive, CPU s/GB", "both"]
    print("\n".join(markdown(head, rows(arguments.size, arguments.chunks, arguments.rounds))))


if __name__ == "__main__":
    main()
