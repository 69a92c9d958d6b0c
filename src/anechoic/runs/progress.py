"""How far a run is, kept elsewhere than its state: by it a state that is not the newest is told."""

from __future__ import annotations

from dataclasses import dataclass

from anechoic.runs.state_file import StateFile


@dataclass(frozen=True)
class Progress:
    """The highest step of a run, and the opening of its state that goes on.

    Attributes:
        opening: see `StateFile.opened_by`; "" for a run without a state.
        step: releases made.
        done: whether the state holds them all; False from before the last one until after it.
    """

    opening: str = ""
    step: int = 0
    done: bool = True

    def fault(self, state: StateFile | None) -> str:
        """Say why an open state, or none, is not the newest of this run, or "".

        A state that lacks the last release goes on where that was begun and not done: the process was ended
        between the two, and nobody saw it. One that is adopted may be older.
        """
        if state is None:
            return "" if self == Progress() else "spent"
        if self.opening not in state.opened_by():
            began = self.step or not self.done
            return (
                "this is not its newest state: another opening of it, or of a copy, went on" if began else ""
            )
        if self.step > state.steps and (self.done or state.adopted):
            return f"this is not its newest state: {self.step} releases were made, and it holds {state.steps}"
        return ""
