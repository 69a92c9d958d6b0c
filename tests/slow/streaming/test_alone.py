"""What a record adds is its own affair: in a batch, in its prefixes and alone, under every kernel of BLAS."""

import os
import random
import subprocess
import sys
from decimal import Decimal
from fractions import Fraction
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest

from anechoic import streaming
from anechoic.streaming.statistic import numbers

# -- every batch is its records one by one ----------------------------------------------------------


def around(points):
    """Points, and the floats beside them."""
    points = np.asarray(points, dtype=float)
    return np.concatenate([points, np.nextafter(points, np.inf), np.nextafter(points, -np.inf)])


def cases(rng):
    """(name, statistic, records) with records at the places where a statistic changes what it does."""
    for d in (2, 9, 32):
        edge = rng.normal(size=(40, d))
        edge /= np.linalg.norm(edge, axis=1)[:, None]  # on the bound, to rounding
        yield f"sum {d}", streaming.Sum(1.0, d), np.concatenate([edge, 2 * edge])
    halves = around(np.arange(-9, 9) / 2**20)  # of the grid
    ends = around([-60.0, 0.0, 0.3, 360.0])
    yield "sum", streaming.Sum(1.0), np.concatenate([halves, around([1.0, -1.0])])
    yield "mean", streaming.Mean(-60, 360), np.concatenate([ends, halves])
    yield "distribution", streaming.Distribution([-60, 0, 0.3, 360]), ends
    yield "quantiles", streaming.Quantiles([-60, 0, 0.3, 360]), ends
    yield "histogram", streaming.Histogram([0, 1, 2]), rng.integers(-1, 4, 60)


def differences():
    """Cases in which a batch is not the sum of its records; of arrays in both orders, and of lists."""
    rng = np.random.default_rng(3)
    for name, statistic, records in cases(rng):

        def added(batch, statistic=statistic):
            return statistic.total(statistic.read(batch), None, 2**19)

        singles = [added(records[i : i + 1]) for i in range(len(records))]
        sums = list(accumulate(singles))
        forms = {
            "rows": lambda k, r=records: r[:k],
            "columns": lambda k, r=records: np.asfortranarray(r[:k]),
            "list": lambda k, r=records: r[:k].tolist(),
            "longer": lambda k, r=records: np.concatenate([r[:k], np.zeros_like(r[:1])])[:k],
        }
        sizes = {size for size in (*range(1, 20), len(records) // 2, len(records)) if size <= len(records)}
        for form, of in forms.items():
            if any((added(of(size)) != sums[size - 1]).any() for size in sizes):
                yield f"{name} as {form}"


KERNELS = ["Sandybridge", *(pytest.param(name, marks=pytest.mark.slow) for name in ("Haswell", "SkylakeX"))]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.slow
def test_a_batch_is_the_sum_of_its_records_under_every_kernel(kernel):
    environment = {**os.environ, "OPENBLAS_CORETYPE": kernel}
    program = "from tests.slow.streaming.test_alone import differences; print(list(differences()))"
    root = Path(__file__).parents[3]
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    if done.returncode < 0:
        pytest.skip(f"this processor does not run the kernel {kernel}")
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


@pytest.mark.slow
def test_numbers_of_all_kinds_are_read_the_same_in_every_list():
    """NumPy gives a list one kind: one entry would decide how the others are rounded."""
    rng = random.Random(0)

    def entry():
        bits = rng.getrandbits(rng.choice([8, 54, 64, 66, 1030]))
        real = rng.gauss(0, 1) * 10.0 ** rng.randrange(-9, 20)
        kinds = [bits, -bits, real, np.float32(real), np.float16(real % 9), np.int64(bits >> 967), np.int8(5)]
        kinds += [True, np.uint64(bits % 2**64), np.longdouble(real) / 3, Decimal(real), Fraction(bits, 7)]
        kinds += [None, "7", 2j]
        return rng.choice(kinds)

    for _ in range(1000):
        records = [entry() for _ in range(rng.randrange(1, 5))]
        alone = np.concatenate([numbers([record]) for record in records])
        assert np.array_equal(numbers(records), alone, equal_nan=True)
        pairs = [[record, entry()] for record in records]
        alone = np.concatenate([numbers([pair], 2) for pair in pairs])
        assert np.array_equal(numbers(pairs, 2), alone, equal_nan=True)
