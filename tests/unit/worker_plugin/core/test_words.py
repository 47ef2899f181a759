"""Text that several errors and log lines share."""

from worker_plugin.core.link import Link
from worker_plugin.core.words import reducers_text


def test_sibling_processes_are_not_counted_as_reducers():
    links = [Link(0, "a:1"), Link(1, "b:1")]
    assert reducers_text(links[:1]) == "1 reducer"
    assert reducers_text(links) == "2 reducers"
    assert reducers_text([*links, Link(2, "a:2", parent=0)]) == "2 reducers in 3 processes"
    # The given process may not be among them.
    assert reducers_text([Link(2, "a:2", parent=0), Link(3, "a:3", parent=0)]) == "1 reducer in 2 processes"
