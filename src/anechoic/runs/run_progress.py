"""Progress of a run, kept elsewhere than its state: by it a state that is not the newest is found."""

from __future__ import annotations

from dataclasses import dataclass

from anechoic.runs.state_file import StateFile


@dataclass(frozen=True)
class RunProgress:
    """Highest step of a run, and the opening of its state that goes on.

    Attributes:
        opening: see `StateFile.opened_by`; "" for a run without a state.
        begun: releases that were about to be made.
        done: releases that the state holds, at most `begun`; none is seen before.
    """

    opening: str = ""
    begun: int = 0
    done: int = 0

    def fault(self, state: StateFile | None) -> str:
        """Say why an open state, or none, is not the newest of this run, or "".

        A state that lacks releases that were begun and not done goes on: the process was ended in between,
        and nobody saw them. One that is adopted may be older.
        """
        if state is None:
            return "" if self == RunProgress() else "spent"
        if self.opening not in state.opened_by():
            if not self.begun:
                return ""  # nothing was released
            return "this is not its newest state: another opening of it, or of a copy, went on"
        least = self.begun if state.adopted else self.done
        if state.steps < least:
            return f"this is not its newest state: {least} releases were made, and it holds {state.steps}"
        return ""
