"""The marks: no combination is lost, and what fails or skips in turn does so as cases of their own would."""

from itertools import combinations, product

import pytest

from tests.conftest import pytest_collection_modifyitems
from tests.marks import each_once, each_pair, every_other, in_turn, slow, spread

SETS = ("ab", [1, 2, 3], [(4, 5), (6, 7)])


def split(parameters):
    """Values of every run, and of the others."""
    found = ([], [])
    for p in parameters:
        found[bool(p.marks)].append(p.values)
    return found


@pytest.mark.parametrize("choose", [each_once, each_pair])
def test_no_combination_is_lost(choose):
    quick, rest = split(choose(*SETS))
    assert sorted(quick + rest) == sorted((a, b, *c) for a, b, c in product(*SETS))
    assert {a for a, *_ in quick} == {"a", "b"} and {b for _, b, *_ in quick} == {1, 2, 3}
    assert {c for *_, c in quick} == {5, 7} and rest


def test_any_two_values_meet():
    quick, _ = split(each_pair("ab", "cd", "ef", "gh"))
    met = {pair for case in quick for pair in combinations(case, 2)}
    assert met == {
        pair for one, other in combinations(("ab", "cd", "ef", "gh"), 2) for pair in product(one, other)
    }
    assert len(quick) < 8


def test_slow_values_stay_slow():
    quick, rest = split(each_once([1, *slow(2)], "ab"))
    assert (sorted(quick), sorted(rest)) == ([(1, "a"), (1, "b")], [(2, "a"), (2, "b")])
    assert [getattr(value, "values", value) for value in every_other("abc")] == ["a", ("b",), "c"]


def test_in_turn_names_the_case_that_fails_and_goes_on_after_one_that_skips():
    seen = []

    @in_turn(("x", "y"), [(1, 2), (3, 4), (5, 6)])
    def check(x, y):
        seen.append(x)
        if x == 1:
            pytest.skip("not this one")
        assert x < 5

    with pytest.raises(AssertionError) as caught:
        check()
    assert seen == [1, 3, 5]
    assert caught.value.__notes__ == ["in the case {'x': 5, 'y': 6}"]
    with pytest.raises(ValueError, match="at least"):
        in_turn("x", [])


def test_few_cases_are_far_apart():
    assert [spread(5, 1), spread(5, 2), spread(4, 9), spread(100, 3)] == [
        {0},
        {0, 4},
        {0, 1, 2, 3},
        {0, 50, 99},
    ]


class Item:
    """A case of a test."""

    parent, originalname = "module", "test"

    def __init__(self, **marks):
        self.marks = {name: getattr(pytest.mark, name)(value).mark for name, value in marks.items()}

    def get_closest_marker(self, name):
        return self.marks.get(name)

    def add_marker(self, mark):
        self.marks[getattr(mark, "name", mark)] = mark


def test_the_other_cases_are_slow():
    few, always = [Item(few=2) for _ in range(4)], Item()
    pytest_collection_modifyitems([always, *few, Item(few=2, slow=True)])
    assert ["slow" in item.marks for item in few] == [False, True, True, False]
    assert "slow" not in always.marks
    assert ["timeout" in item.marks for item in (few[1], always)] == [True, False]
