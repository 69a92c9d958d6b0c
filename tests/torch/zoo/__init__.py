"""A zoo of model shapes, each with a loop of single rows as its reference; see `shapes` and `reference`."""

from tests.torch.zoo.reference import clipped_sum, single_rows
from tests.torch.zoo.shape import ROWS, Rows, Shape
from tests.torch.zoo.shapes import SHAPES

__all__ = ["ROWS", "SHAPES", "Rows", "Shape", "clipped_sum", "single_rows"]
