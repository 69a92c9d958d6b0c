"""What a file may hold that is read without running code from it: tensors, numbers, strings, containers."""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter

#: NumPy's numbers are written as (mark, type, hexadecimal bytes), and read as what they were: a float32 that
#: came back as a Python float would round differently.
_NUMBER = "anechoic numpy number"
_KINDS = "biufc"


def plain(name: str, value: Any) -> Any:
    """`value` in types that weights_only=True reads.

    Args:
        name: where it stands, for the message.
        value: tensors, numbers of Python or NumPy, strings, None, and dicts, lists and tuples of them.

    Raises:
        ValueError: naming the place of anything else.
    """
    if type(value) in (dict, OrderedDict, Counter):
        items = {plain(f"{name} key", key): plain(f"{name}[{key!r}]", item) for key, item in value.items()}
        return _like(value, items)
    if type(value) in (list, tuple, torch.Size):
        found = [plain(f"{name}[{i}]", item) for i, item in enumerate(value)]
        return found if type(value) is list else type(value)(found)
    if isinstance(value, np.generic) and value.dtype.kind in _KINDS:
        return _NUMBER, value.dtype.str, value.tobytes().hex()
    if type(value) not in (Tensor, Parameter, str, int, float, bool, type(None)):
        raise ValueError(
            f"{name} is a {type(value).__name__}, which could not be read back without running code from the"
            " file: keep tensors, numbers, strings, lists, tuples and dicts."
        )
    return value


def unplain(value: Any) -> Any:
    """What was given to `plain`."""
    if type(value) in (dict, OrderedDict, Counter):
        items = {unplain(key): unplain(item) for key, item in value.items()}
        return _like(value, items)
    if type(value) is tuple and len(value) == 3 and value[0] == _NUMBER:
        return np.frombuffer(bytes.fromhex(value[2]), dtype=value[1])[0]
    if type(value) in (list, tuple):
        return type(value)(unplain(item) for item in value)
    return value


def _like(value: Any, items: dict[Any, Any]) -> Any:
    if type(value) is dict:
        return items
    found = type(value)(items)
    vars(found).update(vars(value))  # a module's state dict carries the versions of its layers there
    return found
