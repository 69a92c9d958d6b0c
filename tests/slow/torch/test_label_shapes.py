"""Sums of many models, in floats and exactly, are those of loops over single rows."""

import pytest
import torch

from tests.torch.label_shapes import SHAPES
from tests.torch.test_labels import check_sums

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("name", sorted(SHAPES))
def test_sums_are_those_of_a_loop_over_rows(name, exact):
    make, inputs, targets, loss = SHAPES[name]
    torch.manual_seed(5)
    module, rows = make(), (*inputs(), targets())
    check_sums(module, rows, lambda m, *rows: loss(m(*rows[:-1]), rows[-1]), exact)
