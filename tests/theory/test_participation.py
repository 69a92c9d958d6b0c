"""Conjecture 4.7 by its instances."""

import numpy as np
import pytest

from anechoic import workloads
from anechoic.participation import Cyclic, FullBatch, MinSep, OncePerEpoch
from anechoic.theory.participation import conjecture_4_7


@pytest.mark.parametrize(
    ("n", "schema", "held"),
    [
        (10, Cyclic(3), True),
        (7, FullBatch(), True),
        (6, MinSep(3), True),
        (4, MinSep(1, 3), False),
        (8, MinSep(3, 2), False),
        (5, MinSep(2), None),
        (9, OncePerEpoch(4), True),
    ],
    ids=str,
)
@pytest.mark.few(4)
def test_conjecture_for_prefix_sums(n, schema, held):
    assert conjecture_4_7(workloads.prefix_sum(n), schema) is held


@pytest.mark.parametrize(("seed", "period"), [(0, 2), (1, 3), (2, 5)])
def test_conjecture_holds_where_patterns_do_not_overlap(seed, period):
    a = np.tril(np.random.default_rng(seed).standard_normal((9, 9))) + 2 * np.eye(9)
    assert conjecture_4_7(workloads.from_dense(a), Cyclic(period)) is True
