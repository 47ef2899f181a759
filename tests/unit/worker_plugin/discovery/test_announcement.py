"""The line about a communicator that is ready."""

from worker_plugin.discovery.announcement import line, ranks_text


def test_the_announced_line():
    assert line("cnn", ranks_text(4), ["10.0.0.5:50051", "10.0.0.6:50051"], 2, ["tcp"], is_private=False) == (
        "reduction-server: job cnn, 4 ranks, 2 reducers (10.0.0.5:50051, 10.0.0.6:50051), tcp"
    )
    assert line("cnn", ranks_text(1), ["127.0.0.1:5"], 1, ["tcp", "grpc"], is_private=True) == (
        "reduction-server: job cnn, 1 rank, 1 private reducer (127.0.0.1:5), tcp and grpc"
    )


def test_many_reducers_are_counted():
    text = line("cnn", ranks_text(4), [f"r{number}:1" for number in range(10)], 10, ["tcp"], is_private=False)
    assert text.endswith("4 ranks, 10 reducers (r0:1, r1:1, r2:1, r3:1, r4:1, r5:1, r6:1, r7:1, 2 more), tcp")


def test_sibling_processes_are_not_counted_as_reducers():
    text = line("cnn", ranks_text(4), ["a:1", "b:1"], 4, ["tcp"], is_private=False, colocated=["a:1", "b:1"])
    assert text.endswith("4 ranks, 2 reducers with 4 processes, all on the ranks' hosts (a:1, b:1), tcp")


def test_ranks_text_names_nodes_and_groups():
    assert ranks_text(4, 2) == "4 ranks on 2 nodes"
    assert ranks_text(2, label="0,2") == "2 ranks (0,2)"
