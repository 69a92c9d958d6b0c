"""Privacy arguments of a trainer: those of make_private that it does not know itself."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from torch.utils.data import DataLoader

from anechoic._validate import positive_float, positive_int
from anechoic.budget.book import BudgetBook
from anechoic.mechanism.mechanism import Mechanism
from anechoic.torch.engine import PrivacyEngine
from anechoic.torch.run import Key
from anechoic.torch.setup.arguments import Setup

#: Arguments of make_private that follow from what the trainer has.
OF_THE_TRAINER = {
    **dict.fromkeys(("module", "optimizer", "criterion"), "the trainer's model, optimizer and loss"),
    "data_loader": "the trainer's data set and batch size",
    **dict.fromkeys(("epochs", "steps"), "the trainer's number of epochs or steps"),
    **dict.fromkeys(("scheduler", "scheduler_interval"), "the trainer's scheduler"),
    **dict.fromkeys(
        ("loss_reduction", "batch_first", "grad_sample_mode", "wrap_model"),
        "the trainer, which takes the mean over rows of the loss of each; for ghost clipping write the loop"
        " yourself ('Training with PyTorch' in the documentation)",
    ),
}


class Privacy:
    """The guarantee that a trainer's run is to have. Holds settings alone; each trainer begins its own run.

    Args:
        stop_at_epsilon: > 0: stop training before epsilon at target_delta would exceed it. The number of
            steps that this leaves is a function of public numbers, so it holds as it stands.
        noise_key, sampling_key: as for `PrivacyEngine`; None takes fresh ones.
        journal_sync_every: as for `PrivacyEngine`.
        adopt_journal: as for `PrivacyEngine.load_checkpoint`: for a run that goes on from copied files.
        charge: Mechanisms, or states of private optimizers, that were released before on the same data, such
            as those of the run whose weights the model has; see `PrivacyEngine.charge`.
        book: a `BudgetBook`, as for `PrivacyEngine`: training does not begin where it does not cover the run.
        options: arguments of `PrivacyEngine.make_private_with_epsilon` (target_epsilon, target_delta,
            max_grad_norm, poisson_sampling, unit_ids, mechanism, keep, memory_budget, exact_sums, …), or of
            `make_private` (noise_multiplier in the place of target_epsilon), but for those that the trainer
            knows: model, optimizer, loader, epochs, scheduler.

    Raises:
        ValueError: for names that are unknown or the trainer's own, and values out of range.

    Example:
        Privacy(target_epsilon=8.0, target_delta=1e-6, max_grad_norm=1.0, poisson_sampling=False)
    """

    def __init__(
        self,
        *,
        stop_at_epsilon: float | None = None,
        noise_key: Key = None,
        sampling_key: Key = None,
        journal_sync_every: int = 1,
        adopt_journal: bool = False,
        charge: Sequence[Mechanism | Mapping[str, Any]] = (),
        book: BudgetBook | None = None,
        **options: Any,
    ) -> None:
        if stop_at_epsilon is not None:
            stop_at_epsilon = positive_float("stop_at_epsilon", stop_at_epsilon)
        self.stop_at_epsilon = stop_at_epsilon
        self.noise_key, self.sampling_key = noise_key, sampling_key
        self.journal_sync_every = positive_int("journal_sync_every", journal_sync_every)
        self.adopt_journal, self.book, self.options = adopt_journal, book, options
        self.charge = [charge] if isinstance(charge, (Mechanism, Mapping)) else list(charge)
        self.by_epsilon = "target_epsilon" in options
        method = PrivacyEngine.make_private_with_epsilon if self.by_epsilon else PrivacyEngine.make_private
        known = {*inspect.signature(method).parameters} - {"self", *OF_THE_TRAINER}
        for name in options:
            if name in OF_THE_TRAINER:
                raise ValueError(
                    f"{name}= is not for Privacy: it follows from {OF_THE_TRAINER[name]}. Leave it out."
                )
            if name not in known:
                own = {*inspect.signature(Privacy).parameters} - {"options"}
                raise ValueError(f"{name}= is unknown to Privacy: it takes {', '.join(sorted(own | known))}.")
        if not self.by_epsilon and "noise_multiplier" not in options and "mechanism" not in options:
            raise ValueError(
                "Privacy has neither target_epsilon nor noise_multiplier nor a Mechanism: say how much"
                " privacy the run is to have, as in"
                " Privacy(target_epsilon=8.0, target_delta=1e-6, max_grad_norm=1.0)."
            )

    @property
    def delta(self) -> float | None:
        """Delta of the logged epsilon; None for the mechanism's."""
        return self.options.get("target_delta")

    def period(self, loader: DataLoader[Any]) -> int:
        """Releases in one pass over what is protected: the examples, or with unit_ids their owners.

        Args:
            loader: plain, with the logical batch size.

        Raises:
            MismatchError: if unit_ids are not those of the loader's data set.
        """
        names = {*self.options} & {"unit_ids", "participation", "mechanism"}
        what = {name: self.options[name] for name in names}
        return Setup.of({"module": None, "optimizer": None, "data_loader": loader, **what}).period

    def engine(self, journal: Any) -> PrivacyEngine:
        """Make an engine for one run, which records its releases in the folder `journal`."""
        names = ("noise_key", "sampling_key", "journal_sync_every", "book")
        return PrivacyEngine(journal=journal, **{name: getattr(self, name) for name in names})

    def __repr__(self) -> str:
        return f"Privacy({', '.join(f'{name}={value!r}' for name, value in self.options.items())})"
