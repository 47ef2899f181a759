"""The token file, and the transmission and comparison of a token. The token is never shown."""

import copy
import hmac
import logging
import pickle

import pytest
from reduction.errors import ConfigError
from reduction.limits import FILE_BYTES_MAX, TOKEN_CHARS_MAX
from reduction.security.tokens import TokenTable, from_metadata, read_tokens, to_metadata

A, B, C = "a" * 32, "b" * 32, "c" * 32


@pytest.fixture
def token_file(tmp_path):
    def write(content):
        path = tmp_path / "tokens"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        path.chmod(0o600)
        return str(path)

    return write


def test_the_line_of_a_job_also_covers_its_rails(token_file):
    table = read_tokens(token_file(f"one:{A}\ntwo@3:{B}\n*:{C}\n"))
    jobs = "one", "one@0", "one@4095", "two@3", "two@2", "one@03", "one@x", "one@", "three"
    assert [table.of(job) for job in jobs] == [A, A, A, B, C, C, C, C, C]
    assert read_tokens(token_file(f"one:{A}\n")).of("three") is None


def test_the_line_that_admits_a_job(token_file):
    table = read_tokens(token_file(f"one:{A}\ntwo@3:{B}\n*:{C}\n"))
    jobs = "one", "one@0", "two@3", "two@2", "three"
    assert [table.line_of(job) for job in jobs] == ["one", "one", "two@3", "*", "*"]
    assert read_tokens(token_file(f"*:{C}\n")).line_of("one") == "", "nobody else could come"


def test_the_last_colon_ends_the_job(token_file):
    assert read_tokens(token_file(f"team:night:run:{A}")).of("team:night:run") == A


def test_comments_empty_lines_and_spaces_are_ignored(token_file):
    table = read_tokens(token_file(f"# one:{B}\n\n  \t\n   # two:{B}\n  größe 1 : {A} \r\n"))
    assert table.of("größe 1") == A
    assert repr(table) == "<TokenTable of 1>"


def test_a_token_may_have_any_visible_character_but_a_colon(token_file):
    token = "".join(chr(code) for code in range(0x21, 0x7F) if chr(code) != ":")
    assert read_tokens(token_file(f"job:{token}")).of("job") == token
    assert read_tokens(token_file(f"job:{'x' * TOKEN_CHARS_MAX}")).of("job") == "x" * TOKEN_CHARS_MAX


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("", " has no line JOB:TOKEN"),
        ("# nothing\n", " has no line JOB:TOKEN"),
        (f"job:{A}\n{B}\n", "line 2 of the token file {} is not JOB:TOKEN with a token of 1 to 1024 visible"),
        (f"job:{A}\n:{B}\n", "line 2 of the token file {} is not JOB:TOKEN"),
        ("job:\n", "line 1 of the token file {} is not JOB:TOKEN"),
        (f"job:{B} {B}\n", "line 1 of the token file {} is not JOB:TOKEN"),
        (f"job:{B}ü\n", "line 1 of the token file {} is not JOB:TOKEN"),
        (f"job:{'b' * (TOKEN_CHARS_MAX + 1)}\n", "line 1 of the token file {} is not JOB:TOKEN"),
        (f"job:{A}\n\njob:{B}\n", "line 3 of the token file {} has another token for job 'job'"),
        (b"job:\xff\xfe\n", "the token file {} is not UTF-8"),
        (b"#" * (FILE_BYTES_MAX + 1), "the token file {} has more than 1048576 bytes"),
    ],
)
def test_a_wrong_line_is_named_and_not_shown(token_file, content, text):
    path = token_file(content)
    with pytest.raises(ConfigError) as caught:
        read_tokens(path)
    assert text.format(path) in str(caught.value)
    assert B[:8] not in str(caught.value)
    assert caught.value.__cause__ is None


def test_no_such_file(tmp_path):
    with pytest.raises(ConfigError, match=r"token file .*/nowhere cannot be read: No such file or directory"):
        read_tokens(str(tmp_path / "nowhere"))


def test_a_world_readable_file_is_warned_about(token_file, tmp_path, caplog):
    path = token_file(f"job:{A}")
    read_tokens(path)
    (tmp_path / "tokens").chmod(0o640)
    read_tokens(path)
    assert caplog.messages == []
    (tmp_path / "tokens").chmod(0o644)
    assert read_tokens(path).of("job") == A
    assert caplog.messages == [
        f"the token file {path} can be read by every user of this machine: chmod o-r it"
    ]


def test_a_guessable_token_is_warned_about(token_file, caplog):
    path = token_file(f"one:{'s' * 16}\ntwo:secret\n")
    assert read_tokens(path).of("two") == "secret"
    assert caplog.messages == [
        f"line 2 of the token file {path} has a token of less than 16 characters, which can be guessed"
    ]
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


def test_tokens_admit_only_own_jobs():
    table = TokenTable({"one": A, "two": B, "*": C})
    assert table.admits("one", A)
    assert table.admits("three", C)
    assert not table.admits("one", B), "one job's token opens no other"
    assert not table.admits("one", C), "nor does that of any job open one with its own"
    assert not table.admits("three", A)
    assert not any(table.admits(job, "") for job in ("one", "two", "three", "*", ""))


@pytest.mark.parametrize("shown", [A, "", "x", A[:-1], A + "x", "x" * 1000])
def test_comparison_time_reveals_nothing(monkeypatch, shown):
    """The only comparison takes a time that depends on the length alone, and all tokens have the same length."""
    lengths = []

    def compare(one, other):
        lengths.append((len(one), len(other)))
        return False

    monkeypatch.setattr(hmac, "compare_digest", compare)
    assert not TokenTable({"one": A}).admits("one", shown)
    assert lengths == [(32, 32)]


def test_no_token_admits_a_job_without_one():
    table = TokenTable({"one": A})
    assert not any(table.admits("two", shown) for shown in ("", A, "None", "*"))


def test_only_tokens_of_the_table_are_known():
    table = TokenTable({"one": A, "two": A, "*": C})
    assert [table.knows(shown) for shown in (A, C, B, "")] == [True, True, False, False]


def test_the_status_token_is_the_wildcard_one_or_else_the_first():
    assert TokenTable({"one": A, "*": C}).of_any_job() == C
    assert TokenTable({"one": A, "two": B}).of_any_job() == A


def test_tokens_that_may_drain():
    operated = TokenTable({"one": A, "*": C})
    assert (operated.may_drain(C), operated.may_drain(A), operated.may_drain("")) == (True, False, False)
    jobs = TokenTable({"one": A, "two": B})
    assert (jobs.may_drain(A), jobs.may_drain(B), jobs.may_drain(C)) == (True, True, False)


def test_a_table_shows_no_token():
    table = TokenTable({"one": A})
    assert A not in repr(table)
    assert A not in f"{table} {[table]}"
    for take in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="never pickled") as caught:
            take(table)
        assert A not in str(caught.value)


def test_a_token_travels_as_a_bearer():
    assert to_metadata(None) == ()
    assert to_metadata(A) == (("authorization", f"Bearer {A}"),)
    assert from_metadata(to_metadata(A)) == A


@pytest.mark.parametrize(
    "metadata",
    [
        (),
        (("user-agent", f"Bearer {A}"),),
        (("authorization", A),),
        (("authorization", f"Basic {A}"),),
        (("authorization", b"Bearer x"),),
    ],
)
def test_metadata_that_shows_no_token(metadata):
    assert from_metadata(metadata) == ""
