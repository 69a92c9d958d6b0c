"""kill -9 before any line of some rooms."""

import os
import signal
import sys
from pathlib import Path


def folders(*rooms):
    """Where modules of these rooms are."""
    return tuple(str(Path(room.__file__).parent) for room in rooms)


def _tracer(rooms, seen):
    def trace(frame, event, _):
        if not frame.f_code.co_filename.startswith(rooms):
            return None
        if event == "line":
            seen()
        return trace

    return trace


def killed_at(run, line, *given, rooms):
    """Call `run` in a child process that dies before the given line of the rooms; whether it died."""
    child = os.fork()
    if child == 0:
        left = line

        def seen():
            nonlocal left
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.settrace(_tracer(rooms, seen))
        try:
            run(*given)
        finally:
            sys.settrace(None)
            os._exit(0)
    return os.waitpid(child, 0)[1] == signal.SIGKILL


def lines_of_a_run(run, *given, rooms):
    """How many lines of the rooms a call runs."""
    lines, before = [], sys.gettrace()
    sys.settrace(_tracer(rooms, lambda: lines.append(0)))
    try:
        run(*given)
    finally:
        sys.settrace(before)  # that of coverage, say
    return len(lines)


def places(total, kills):
    """So many lines of a run, evenly."""
    return [1 + number * (total - 1) // max(1, kills - 1) for number in range(kills)]
