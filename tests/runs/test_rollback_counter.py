"""The count of commits outside of a state file."""

import pytest
from anechoic.runs.rollback_counter import Counter

from anechoic.errors import CheckpointError, ReplayError


def test_a_counter_whose_writer_was_killed_before_the_first_line_counts_as_missing(tmp_path):
    counter = Counter(tmp_path / "counter")
    counter.path.touch()
    assert counter.read() is None
    with pytest.raises(ReplayError, match="is missing although 3 commits"):
        counter.check("mark", 3, may_begin=False)
    counter.check("mark", 1, may_begin=True)
    assert counter.read() == ("mark", 1)


def test_a_counter_of_something_else_is_refused(tmp_path):
    counter = Counter(tmp_path / "counter")
    counter.path.write_text("something else\n")
    with pytest.raises(CheckpointError, match="no count of commits"):
        counter.read()
