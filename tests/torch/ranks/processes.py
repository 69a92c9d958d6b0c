"""Several ranks of torch.distributed on this machine, forked from the process that runs the tests."""

import os
import pickle
import signal
import tempfile
import time
import traceback
from datetime import timedelta
from pathlib import Path

import torch._dynamo  # noqa: F401 - which the first optimizer of a process imports: once, before forks
import torch.distributed as dist

#: Seconds after which ranks that have not ended are killed, and the test fails.
PATIENCE = 150


class Died(Exception):
    """A rank ended without a result: killed, or on its own."""


def on_ranks(count, work, *, timeout=60.0, disturb=None):
    """work(rank) in `count` processes under gloo: for each its result, or the exception that it raised.

    Args:
        count: ranks; 1 runs in a process of its own too, and begins no torch.distributed.
        work: returns something that can be pickled.
        timeout: of the process group, seconds.
        disturb: called again and again with the processes that have not ended, in the order of ranks.
    """
    with tempfile.TemporaryDirectory() as folder:
        children = [_forked(rank, count, work, Path(folder), timeout) for rank in range(count)]
        end, left = time.monotonic() + PATIENCE, set(children)
        while left and time.monotonic() < end:
            left -= {child for child in left if os.waitpid(child, os.WNOHANG)[0]}
            if disturb is not None:
                disturb([child for child in children if child in left])
            time.sleep(0.01 if disturb is None else 0.001)
        for child in left:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        if left:
            raise TimeoutError(f"ranks {[children.index(child) for child in left]} of {count} hang")
        return [_found(Path(folder) / f"{rank}.result") for rank in range(count)]


def results(count, work, **options):
    """The same where no rank may fail."""
    found = on_ranks(count, work, **options)
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return found


def _forked(rank, count, work, folder, timeout):
    child = os.fork()
    if child:
        return child
    code = 0
    try:
        if count > 1:
            dist.init_process_group(
                "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=count,
                timeout=timedelta(seconds=timeout),
            )  # fmt: skip
        found = work(rank)
    except BaseException as error:
        error.add_note(traceback.format_exc())
        found = error
    try:
        place = folder / f"{rank}.result"
        part = place.with_suffix(".partial")
        part.write_bytes(pickle.dumps(found))
        part.rename(place)
    except BaseException:
        traceback.print_exc()
        code = 1
    finally:
        os._exit(code)  # nothing of the process that runs the tests is cleaned up here


def _found(place):
    return pickle.loads(place.read_bytes()) if place.exists() else Died("it left no result")
