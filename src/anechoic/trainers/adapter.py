"""Adapter of a trainer: its guarantee, the one run that it begins, and settings that it refuses."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from anechoic.errors import DesynchronizedError, UnsupportedError
from anechoic.torch.engine import PrivacyEngine
from anechoic.trainers.privacy import Privacy
from anechoic.trainers.run import TrainerRun

logger = logging.getLogger("anechoic")
#: (name of a setting, whether its value is refused, the remedy)
Refused = tuple[str, Callable[[Any], Any], str]


class DroppedLogs(set[str]):
    """Names that are not logged while training, each reported once; those given go without saying."""

    def tell(self, name: str) -> None:
        if name not in self:
            self.add(name)
            logger.warning(
                "%s, logged while training, is dropped: nothing protects what is computed from the data"
                " without noise. Log it in validation, on data that may be seen.",
                name,
            )


class TrainerAdapter:
    """Adapter with one private run, which a method of the framework begins.

    Attributes:
        engine: the PrivacyEngine of the run, once it has begun.
    """

    _privacy: Privacy
    _run: TrainerRun | None = None
    #: The method, and what the framework's users call the object.
    _begins, _called = "train()", "trainer"

    def _take(self, privacy: Any) -> None:
        if not isinstance(privacy, Privacy):
            raise TypeError(f"privacy is a {type(privacy).__name__}: give anechoic.trainers.Privacy(…).")
        self._privacy = privacy

    @property
    def engine(self) -> PrivacyEngine:
        return self._begun.engine

    @property
    def _begun(self) -> TrainerRun:
        if self._run is None:
            raise DesynchronizedError(f"the private run begins with {self._begins}: call it first.")
        return self._run

    def _check_first(self) -> None:
        if self._run is not None:
            raise UnsupportedError(
                f"{self._begins} was called twice: a run has the steps that its mechanism was planned for."
                f" Plan for all of them at once, or make a new {self._called} whose Privacy counts this run:"
                f" charge=[{self._called}.engine.mechanism]."
            )


def check_settings(settings: Any, refused: Iterable[Refused], shown: str = "{}={!r}") -> None:
    """Refuse settings that no private run can have."""
    for name, is_refused, remedy in refused:
        value = getattr(settings, name, None)
        if is_refused(value):
            raise UnsupportedError(f"{shown.format(name, value)} is refused: {remedy}.")
