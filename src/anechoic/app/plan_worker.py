"""Plan for one tab in a process, which a newer question ends."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, cast

from anechoic.app.plan_form import PlanForm
from anechoic.app.plan_view import work


class PlanWorker:
    """Worker that answers the latest question of a tab and no other."""

    def __init__(self) -> None:
        self._process: BaseProcess | None = None
        self._pipe: Connection | None = None
        self._busy = False
        self._asked = 0
        self._starting = asyncio.Lock()

    async def ask(self, question: PlanForm) -> AsyncIterator[tuple[str, str]]:
        """The parts of the answer as they become known; they stop where another question is asked.

        A wrong question has the part "error", with the name of its field, see `work`.
        """
        self.cancel()
        mine = self._asked
        async with self._starting:
            pipe = await asyncio.to_thread(self._ready)
        if mine != self._asked:
            return
        self._busy = True
        pipe.send(question)
        while self._busy:
            try:
                part = await asyncio.to_thread(pipe.recv)
            except (EOFError, OSError):  # ended by `cancel`, or by the system
                if mine == self._asked:
                    self.cancel()
                    yield "error", "The computation was ended from outside, perhaps for want of memory."
                return
            if mine != self._asked:
                return
            self._busy = not part[0].startswith(("done", "error"))
            yield part
            if mine != self._asked:
                return

    def cancel(self) -> None:
        """Forget the question that is being answered, and end its process if it is at work."""
        self._asked += 1
        if self._busy:
            self.close()

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
        self._process, self._pipe, self._busy = None, None, False

    def _ready(self) -> Connection:
        """A pipe to a process that waits for a question."""
        if self._pipe is not None and self._process is not None and self._process.is_alive():
            return self._pipe
        # a fork of a process that has imported everything is there at once; elsewhere threads forbid forks
        forks = sys.platform == "linux"
        context: Any = get_context("forkserver" if forks else "spawn")
        if forks:
            # a second of imports that a question would wait for
            later = ["matplotlib.figure", "scipy.interpolate", "scipy.optimize", "scipy.sparse"]
            context.set_forkserver_preload([work.__module__, *later])
        mine, theirs = context.Pipe()
        process = context.Process(target=work, args=(theirs,), daemon=True)
        process.start()
        theirs.close()
        self._pipe, self._process = mine, process
        return cast(Connection, mine)
