"""A reducer process's record of collectives for its trace, and the files written from it."""

import json

from reduction.timeline.reducer_record import from_json

from reducer.spans import KEPT, Spans


class Clock:
    """A clock that shows the time it is given."""

    now = 0.0

    def __call__(self):
        return self.now


def test_a_span_records_when_ranks_began_and_which_were_last(tmp_path):
    clock, cpu = Clock(), Clock()
    spans = Spans(tmp_path, "r:1", clock, cpu)
    for now, rank in ((1.0, 0), (1.5, 2), (3.0, 1)):
        clock.now, cpu.now = now, now / 10
        spans.on_push(7, "cnn", 3, rank, 5)
    clock.now, cpu.now = 3.25, 0.4
    spans.on_publish(7, 5, 1, 1.0)
    spans.on_push(7, "cnn", 3, 0, 5)
    clock.now = 4.0
    spans.on_publish(7, 5, 0, 3.5)
    (record,) = spans.records()
    assert (record.job, record.world_size, record.address) == ("cnn", 3, "r:1")
    (span,) = record.spans
    assert (span.first_push, span.published, span.chunks) == (1.0, 4.0, 2)
    assert (span.cpu_at_first_push, span.cpu_at_published) == (0.1, 0.4)
    assert span.begun == {0: 1.0, 2: 1.5, 1: 3.0}
    assert span.last == {1: 1, 0: 1}
    assert span.waited == {1: 0.25, 0: 0.5}
    clock.now = 4.5
    spans.on_publish(7, 5, 0, 4.25)
    assert span.waited == {1: 0.25, 0: 0.75}
    assert span.longest == {1: 0.25, 0: 0.5}


def test_only_the_latest_are_kept(tmp_path):
    spans = Spans(tmp_path, "r:1")
    for seq in range(KEPT + 3):
        spans.on_push(1, "cnn", 1, 0, seq)
    spans.on_publish(1, 0, 0, 0.0)
    spans.on_publish(2, 0, 0, 0.0)
    (record,) = spans.records()
    assert [span.seq for span in record.spans] == list(range(3, KEPT + 3))
    assert not any(span.chunks for span in record.spans)


def test_jobs_that_have_ended_are_taken_once_and_written(tmp_path):
    spans = Spans(tmp_path / "new", "h:1")
    for key, job in ((1, "../a"), (2, "b")):
        spans.on_push(key, job, 1, 0, 0)
    ended = spans.take_ended([2])
    assert [record.job for record in ended] == ["../a"]
    assert spans.take_ended([2]) == []
    spans.write(ended)
    (path,) = (tmp_path / "new").iterdir()
    assert path.name.startswith(".._a~")
    assert "-reducer-h_1-" in path.name
    assert from_json(path.read_text(), path.name) == ended[0]
    assert json.loads(path.read_text())["format"] == 1


def test_a_failure_to_write_is_logged(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    spans = Spans(tmp_path / "file", "h:1")
    spans.on_push(1, "a", 1, 0, 0)
    spans.write(spans.records())
    assert f"no trace in {tmp_path / 'file'}" in caplog.text


def test_each_job_has_one_file_and_a_later_record_replaces_the_earlier_one(tmp_path):
    spans = Spans(tmp_path, "h:1")
    for key, job in enumerate(("a_b", "a/b", "a b", "a_b")):
        spans.on_push(key, job, 1, 0, key)
    for _ in range(2):
        spans.write(spans.records())
    found = [from_json(path.read_text(), path.name) for path in tmp_path.iterdir()]
    assert sorted((one.job, one.spans[0].seq) for one in found) == [("a b", 2), ("a/b", 1), ("a_b", 3)]


def test_files_that_are_remembered_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr("reducer.spans.FILES_MAX", 2)
    spans = Spans(tmp_path, "h:1")
    for number in range(5):
        spans.on_push(number, str(number), 1, 0, 0)
    spans.write(spans.records())
    assert len(list(tmp_path.iterdir())) == 5
    assert list(spans._files) == ["3", "4"]
