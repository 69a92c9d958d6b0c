"""One thread for BLAS where its products are small: more would wait for each other and burn the processor."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache, wraps
from threading import current_thread, main_thread
from typing import Any, ParamSpec, TypeVar

from threadpoolctl import ThreadpoolController

P = ParamSpec("P")
R = TypeVar("R")

#: Steps from which products of n x n matrices gain from more threads.
MANY = 2048


@cache
def _controller() -> ThreadpoolController:
    """The BLAS libraries of this process: finding them takes milliseconds, so it is done once."""
    return ThreadpoolController()


def one_blas_thread() -> AbstractContextManager[Any]:
    """BLAS takes one thread inside; afterwards as many as before.

    The setting is one for the whole process, so that only its main thread makes it: of several that overlap
    the last one would put back what it found, which is what another one had made.
    """
    if current_thread() is not main_thread():
        return nullcontext()
    limiter: AbstractContextManager[Any] = _controller().limit(limits=1, user_api="blas")
    return limiter


def on_one_thread(function: Callable[P, R]) -> Callable[P, R]:
    """The function, with `one_blas_thread` inside."""

    @wraps(function)
    def capped(*args: P.args, **kwargs: P.kwargs) -> R:
        with one_blas_thread():
            return function(*args, **kwargs)

    return capped


def on_one_thread_if_small(function: Callable[P, R]) -> Callable[P, R]:
    """The same for a function of an n x n matrix, named first with its `n`, where n is at most `MANY`."""
    alone = on_one_thread(function)

    @wraps(function)
    def capped(*args: P.args, **kwargs: P.kwargs) -> R:
        first: Any = args[0] if args else next(iter(kwargs.values()), None)
        n = getattr(first, "n", 0)
        return (alone if isinstance(n, int) and n <= MANY else function)(*args, **kwargs)

    return capped
