"""Names of rails: the existing ones, and the jobs they belong to."""

import pytest
from reduction.rails import SUFFIX_BYTES_MAX, is_rail, job_of, rail_name


@pytest.mark.parametrize("local_rank", [0, 1, 9, 10, 4095])
def test_a_rail_belongs_to_its_job(local_rank):
    name = rail_name("team:night", local_rank)
    assert is_rail(name)
    assert job_of(name) == "team:night"
    assert len(name) <= len("team:night") + SUFFIX_BYTES_MAX


@pytest.mark.parametrize(
    "name", ["job", "job@", "@1", "job@01", "job@-1", "job@1 ", "job@x", "job@10000", "1"]
)
def test_other_names_are_not_rails(name):
    assert not is_rail(name)
    assert job_of(name) == name


def test_a_rail_of_a_job_named_like_a_rail_belongs_to_that_job():
    assert job_of("job@1@2") == "job@1"
