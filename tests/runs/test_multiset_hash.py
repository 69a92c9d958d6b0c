"""The digest of a table's rows: of all of them, in any order, and of nothing else."""

from anechoic.runs.multiset_hash import RowSum

ROWS = [(b"a", 1, 2), (b"b", 1, 2), (b"a", 12), ("a", 1, 2), (b"a", 1, 2, 3)]


def test_it_is_that_of_the_rows_in_any_order():
    whole = RowSum(ROWS)
    assert whole.digest == RowSum(reversed(ROWS)).digest and len(whole.digest) == 32
    assert RowSum().digest == bytes(32)


def test_rows_that_go_leave_no_trace_and_come_back():
    some, changed = RowSum(ROWS[:2]), RowSum(ROWS)
    for row in ROWS[2:]:
        changed.remove(row)
    assert changed.digest == some.digest
    changed.remove(ROWS[0])
    assert changed.digest == RowSum(ROWS[1:2]).digest
    changed.add(ROWS[0])
    assert changed.digest == some.digest


def test_every_other_set_of_rows_has_another():
    found = {RowSum(ROWS[:i]).digest for i in range(len(ROWS) + 1)}
    found |= {RowSum([row]).digest for row in ROWS}
    found.add(RowSum([ROWS[0]] * 2).digest)
    assert len(found) == 2 * len(ROWS) + 1  # the first row alone is in both
