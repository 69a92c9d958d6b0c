"""Checks of arguments, in one voice: the value, the rule, the remedy."""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Callable
from difflib import get_close_matches
from functools import wraps
from inspect import signature
from typing import Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

# Squares of numbers below or above these would leave the range of a float64.
SMALLEST, LARGEST = 1e-140, 1e140
# Products of several numbers up to this stay in the range of a float64.
MODERATE = 1e50

Array = NDArray[np.float64]

Given = ParamSpec("Given")
Found = TypeVar("Found")


def known_keywords(function: Callable[Given, Found]) -> Callable[Given, Found]:
    """`function`, with the names that come near, or all, in its error for an argument that it does not have.

    Raises:
        TypeError: as Python does, from the call.
    """
    known = [name for name in signature(function).parameters if name != "self"]

    @wraps(function)
    def checked(*args: Given.args, **given: Given.kwargs) -> Found:
        for name in given:
            if name not in known:
                close = get_close_matches(name, known, n=2)
                hint = f"Did you mean {' or '.join(close)}?" if close else f"It has {', '.join(known)}."
                raise TypeError(f"{function.__name__} has no argument {name!r}. {hint}")
        return function(*args, **given)

    return checked


def positive_int(name: str, value: Any, *, minimum: int = 1, remedy: str = "") -> int:
    """`value` as an int >= `minimum`; bools and non-integral floats are refused."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise ValueError(f"{name}={value!r} must be an integer >= {minimum}.{_tail(remedy)}")
    if int(value) < minimum:
        raise ValueError(f"{name}={int(value)} must be at least {minimum}.{_tail(remedy)}")
    return int(value)


def positive_float(name: str, value: Any, *, remedy: str = "") -> float:
    """`value` as a finite float > 0."""
    number = real_number(name, value)
    if not (math.isfinite(number) and number > 0):
        raise ValueError(f"{name}={value!r} must be a finite number > 0.{_tail(remedy)}")
    return number


def moderate(name: str, value: Any) -> float:
    """`value` as a float > 0 whose powers, and products with a few others, stay in the range of floats."""
    number = positive_float(name, value)
    if not 1.0 / MODERATE <= number <= MODERATE:
        raise ValueError(
            f"{name}={value!r} must lie between {1 / MODERATE:g} and {MODERATE:g}, or products leave the"
            " range of float64: choose other units."
        )
    return number


def at_least(name: str, value: Any, minimum: float = 0.0, *, remedy: str = "") -> float:
    """`value` as a float of moderate size >= `minimum`."""
    number = real_number(name, value)
    if math.isfinite(number) and number > MODERATE:
        raise ValueError(f"{name}={value!r} must be at most {MODERATE:g}: choose other units.")
    if not (math.isfinite(number) and number >= minimum):
        raise ValueError(f"{name}={value!r} must be a finite number >= {minimum:g}.{_tail(remedy)}")
    return number


_UNITS = {
    **{"": 1, "b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12},
    **{"kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40},
}


def byte_count(name: str, value: Any) -> float:
    """`value` as a number of bytes > 0: a number, or a text such as "2GB" (2·10⁹) or "2GiB" (2·2³⁰)."""
    remedy = 'Give bytes, such as 2e9, or a text such as "2GB" or "512MiB".'
    if not isinstance(value, str):
        return positive_float(name, value, remedy=remedy)
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?(?:e\d+)?)\s*([a-z]*)\s*", value.lower())
    if match is None or match[2] not in _UNITS:
        raise ValueError(f"{name}={value!r} is not a size. {remedy}")
    return positive_float(name, float(match[1]) * _UNITS[match[2]], remedy=remedy)


def fraction(name: str, value: Any, *, remedy: str = "") -> float:
    """`value` as a float strictly between 0 and 1."""
    number = real_number(name, value)
    if not 0 < number < 1:
        raise ValueError(f"{name}={value!r} must lie strictly between 0 and 1.{_tail(remedy)}")
    return number


def decaying(name: str, value: Any, *, remedy: str = "") -> float:
    """`value` as a float in [0, 1)."""
    number = real_number(name, value)
    if not 0 <= number < 1:
        raise ValueError(f"{name}={value!r} must lie in [0, 1).{_tail(remedy)}")
    return number


def plain(value: Any) -> int | float:
    """A real number as the built-in int or float, whichever it is: NumPy's are not written to files."""
    return int(value) if isinstance(value, numbers.Integral) else float(value)


def flag(name: str, value: Any) -> bool:
    """`value` if it is True or False, of Python or NumPy; a text such as "no" would count as true."""
    if not isinstance(value, bool | np.bool_):
        kind = type(value).__name__
        raise ValueError(
            f"{name}={value!r} must be True or False, not {kind}: write {name}=True or {name}=False."
        )
    return bool(value)


def one_of(name: str, value: Any, allowed: tuple[str, ...], *, remedy: str = "") -> str:
    """`value` if it is one of the `allowed` words."""
    if value not in allowed:
        words = ", ".join(map(repr, allowed))
        raise ValueError(f"{name}={value!r} is unknown: choose one of {words}.{_tail(remedy)}")
    return str(value)


def finite_array(name: str, value: ArrayLike, *, ndim: int = 1, length: int | None = None) -> Array:
    """A read-only float64 copy of `value`, finite, with `ndim` axes and at least one entry."""
    try:
        given = np.asarray(value)
        if given.dtype.kind in "cSUMmV":  # complex numbers, text, dates: NumPy would convert some of them
            raise TypeError
        array = np.array(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}={value!r} cannot be read as an array of real numbers.") from error
    except OverflowError:
        raise ValueError(f"{name} has an entry beyond the range of floating point, 1.8e308.") from None
    if array.ndim != ndim or array.size == 0:
        raise ValueError(f"{name} has shape {array.shape}; a non-empty {ndim}-dimensional array is needed.")
    if length is not None and len(array) != length:
        raise ValueError(f"{name} has {len(array)} entries; {length} are needed.")
    if not np.isfinite(array).all():
        where = np.argwhere(~np.isfinite(array))[0].tolist()
        raise ValueError(
            f"{name}{where}={array[tuple(where)]} is not finite: every entry must be a real number."
        )
    array.setflags(write=False)
    return array


def lower_triangular(value: ArrayLike, n: int | None, remedy: str) -> Array:
    """A read-only float64 copy of a square matrix that is zero above its diagonal and positive on it."""
    array = finite_array("matrix", value, ndim=2)
    if array.shape[0] != array.shape[1]:
        raise ValueError(f"matrix has shape {array.shape}; it must be square (n, n).")
    if np.triu(array, 1).any():
        raise ValueError(f"matrix has entries above its diagonal: {remedy}")
    if (array.diagonal() <= 0).any():
        t = int(np.flatnonzero(array.diagonal() <= 0)[0])
        raise ValueError(f"matrix[{t}, {t}]={array[t, t]} must be > 0 on the diagonal.")
    if n is not None and n != len(array):
        raise ValueError(f"n={n} differs from the matrix's {len(array)} rows.")
    return array


def steps_within(n: int, steps: int) -> int:
    """`steps` if 1 <= steps <= n; True is no number of steps."""
    if isinstance(steps, bool) or not 1 <= steps <= n:
        raise ValueError(f"steps={steps} must lie between 1 and n={n}.")
    return int(steps)


def rows_of(n: int, x: ArrayLike) -> Array:
    """`x` as float64, with n rows."""
    array = np.asarray(x, dtype=np.float64)
    if array.ndim == 0 or len(array) != n:
        raise ValueError(f"x has shape {array.shape}; axis 0 must have n={n} steps.")
    return array


def scale_rows(diagonal: Array, x: Array) -> Array:
    """The product of a diagonal matrix with `x`, along axis 0."""
    return np.asarray(diagonal.reshape((-1,) + (1,) * (x.ndim - 1)) * x)


def real_number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise ValueError(f"{name}={value!r} must be a real number.")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"{name} lies beyond the range of floating point, 1.8e308.") from None


def _tail(remedy: str) -> str:
    return f" {remedy}" if remedy else ""
