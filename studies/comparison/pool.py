"""Runs spread over worker processes, one torch thread each, with progress as it happens."""

from __future__ import annotations

import multiprocessing
import queue
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from anechoic._validate import positive_int
from anechoic.errors import AnechoicError
from studies.comparison.study import Outcome, TrainingRun

#: Called with the arm's name, the steps made since the last call, and the outcome of a run that ended.
Listener = Callable[[str, int, Outcome | None], None]
#: Makes a run, and says of every so many steps that they are made.
Executor = Callable[[TrainingRun, Callable[[int], None]], Outcome]

_STEPS: Any = None  # in a worker: the queue that carries progress to the parent


class WorkerError(AnechoicError):
    """A worker process ended without an answer."""


def execute_all(
    runs: Sequence[TrainingRun], *, jobs: int, execute: Executor, listen: Listener = lambda *_: None
) -> list[Outcome]:
    """The outcomes of `runs`, in their order.

    Args:
        runs: what to train.
        jobs: worker processes. With 0 the runs happen in this process, one after the other; no run can then
            be repeated, because a process uses a noise key once.
        execute: what makes a run; a function that another process can import.
        listen: hears of progress, in this process.

    Raises:
        WorkerError: if a worker was killed, for want of memory for instance.
    """
    if positive_int("jobs", jobs, minimum=0) == 0:
        return _here(runs, listen, execute)
    context = multiprocessing.get_context("spawn")
    steps = context.Queue()
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(min(jobs, len(runs)), context, initializer=_enter, initargs=(steps,))
    try:
        waiting: dict[Future[Outcome], TrainingRun] = {pool.submit(_there, execute, run): run for run in runs}
        order = list(waiting)
        while waiting:
            done, _ = wait(waiting, timeout=0.1, return_when=FIRST_COMPLETED)
            _hear(steps, listen)
            for future in done:
                listen(waiting.pop(future).arm.name, 0, future.result())
        return [future.result() for future in order]
    except BrokenProcessPool as error:
        raise WorkerError(
            "a worker process was killed, most often for want of memory: try again with --jobs 1."
        ) from error
    except BaseException:
        # on an error or Ctrl-C nobody waits for runs whose outcome will not be used
        for worker in set(multiprocessing.active_children()) - others:
            worker.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        steps.close()


def _here(runs: Sequence[TrainingRun], listen: Listener, execute: Executor) -> list[Outcome]:
    outcomes = []
    for run in runs:
        outcomes.append(execute(run, lambda count, name=run.arm.name: listen(name, count, None)))  # type: ignore[misc]
        listen(run.arm.name, 0, outcomes[-1])
    return outcomes


def _enter(steps: Any) -> None:
    """In a new worker: one thread, and where progress goes. Ctrl-C ends it without a traceback."""
    import signal

    import torch

    global _STEPS
    _STEPS = steps
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    torch.set_num_threads(1)


def _there(execute: Executor, run: TrainingRun) -> Outcome:
    return execute(run, lambda count: _STEPS.put((run.arm.name, count)))


def _hear(steps: Any, listen: Listener) -> None:
    while True:
        try:
            name, count = steps.get_nowait()
        except queue.Empty:
            return
        listen(name, count, None)
