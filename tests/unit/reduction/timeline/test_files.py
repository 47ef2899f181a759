"""Files of records: one per job, owner-only, never overwriting an existing file."""

import os
import stat

import pytest
from reduction.timeline.files import OwnFile, file_name


def test_no_two_jobs_share_a_name_and_none_leaves_the_directory():
    jobs = ["a_b", "a/b", "a b", "a:b", "../a_b", "n" * 200, "n" * 199, "\u65e5\u672c", "\u672c\u65e5"]
    names = [file_name(job, "-rank0") for job in jobs]
    assert len(set(names)) == len(jobs)
    assert names[0] == "a_b-rank0"
    assert all("/" not in name and len(name.encode()) <= 240 for name in names)
    assert file_name("a", f"-reducer-{'h' * 250}:1-77").endswith("h_1-77")


def test_a_file_is_rewritten_and_readable_only_by_us(tmp_path):
    file = OwnFile(tmp_path / "new" / "folder", "a")
    path = file.write("a long text")
    assert file.write("short") == path == tmp_path / "new" / "folder" / "a.json"
    assert path.read_text() == "short"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]


def test_a_failed_write_leaves_the_previous_text(tmp_path):
    file = OwnFile(tmp_path, "a")
    path = file.write("first")
    with pytest.raises(UnicodeEncodeError):
        file.write("half \ud800")
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]


def test_existing_files_are_left_untouched(tmp_path):
    (tmp_path / "a.json").write_text("theirs")
    os.mkfifo(tmp_path / "a.1.json")
    assert OwnFile(tmp_path, "a").write("ours") == tmp_path / "a.2.json"
    assert (tmp_path / "a.json").read_text() == "theirs"


@pytest.mark.parametrize("is_there", [True, False])
def test_no_link_is_followed(tmp_path, is_there):
    other = tmp_path / "other"
    if is_there:
        other.write_text("precious")
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a.json").symlink_to(other)
    assert OwnFile(folder, "a").write("ours") == folder / "a.1.json"
    assert other.exists() == is_there
    assert not is_there or other.read_text() == "precious"


def put_link(path, other):
    path.symlink_to(other)


def put_file(path, other):
    path.write_text("theirs")


def put_pipe(path, other):
    os.mkfifo(path)


@pytest.mark.parametrize("put", [put_link, put_file, put_pipe])
def test_a_replacement_of_our_file_is_not_written_to(tmp_path, put):
    other = tmp_path / "other"
    other.write_text("precious")
    file = OwnFile(tmp_path, "a")
    path = file.write("first")
    path.rename(tmp_path / "moved")
    put(path, other)
    assert file.write("second") == tmp_path / "a.1.json"
    assert other.read_text() == "precious"
    assert (tmp_path / "moved").read_text() == "first"
    assert not path.is_file() or path.read_text() in ("theirs", "precious")
    assert file.write("third") == tmp_path / "a.1.json"


def test_a_failure_is_raised_to_the_caller(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        OwnFile(tmp_path / "file", "a").write("")
