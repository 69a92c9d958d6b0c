"""The errors of a plan's rows over the steps of their run, against B = A C^-1 entry by entry."""

import numpy as np
import pytest

from anechoic.losses.dispatch import error
from anechoic.planning.compare import plan
from anechoic.planning.course import POINTS, Course
from anechoic.strategies import BandedToeplitz
from anechoic.workloads import momentum

SMALL = {"examples": 240, "batch_size": 20, "epochs": 2, "epsilon": 2.0, "delta": 1e-5}


@pytest.mark.few(1)
@pytest.mark.parametrize("keep", ["last", "all", "average", 0.7, "any"])
def test_the_course_of_a_row_is_what_its_matrices_say(keep):
    found = plan(**SMALL, random_sampling=False, keep=keep, scheduler="cosine", dimension=10)
    for row in found.rows:
        decoder = row.objective.workload.to_dense() @ np.linalg.inv(row.mechanism.strategy.to_dense())
        std = row.noise_std / row.batch_size * np.sqrt(np.square(decoder).sum(axis=1))
        assert row.course.steps.tolist() == list(range(1, 25))
        assert row.course.errors == pytest.approx(std, rel=1e-9)
        mean = np.sqrt(row.objective.weights @ np.square(row.course.errors))
        assert row.predicted == pytest.approx(row.course.errors.max() if keep == "any" else mean)


def test_rows_of_other_lengths_have_their_own_workload():
    found = plan(**SMALL | {"epochs": [1, 2]}, strategy="identity", random_sampling=False)
    assert sorted(row.course.steps[-1] for row in found.rows) == [12, 24]
    assert {row.objective.workload.n == row.mechanism.steps for row in found.rows} == {True}


def test_a_long_course_is_thinned_and_keeps_its_ends_and_its_extremes():
    n = 3000
    errors = error(momentum(n, 0.9), BandedToeplitz(n, [1.0, 0.4, 0.1]))
    course, every = Course.of(errors), errors.per_step
    assert len(course.steps) <= POINTS
    assert course.errors == pytest.approx(every[course.steps.astype(int) - 1])
    assert (course.steps[0], course.steps[-1]) == (1, n)
    assert course.errors.max() == pytest.approx(every.max())


def test_what_was_computed_for_the_objective_is_not_computed_again(monkeypatch):
    found = plan(**SMALL, random_sampling=False)
    monkeypatch.setattr("anechoic.planning.records.error", lambda *given: pytest.fail("computed again"))
    assert found.chosen.known is not None and len(found.chosen.course.steps) == 24
