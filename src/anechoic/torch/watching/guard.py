"""What must be as it was when the run began, or nothing is released: asked once, first of all in a step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from anechoic.errors import GuaranteeError, MismatchError
from anechoic.torch.idle import idle
from anechoic.torch.randomness.csprng_dispatch import paused
from anechoic.torch.randomness.rng_stack import Surroundings
from anechoic.torch.row_types.numbers import among
from anechoic.torch.watching.members import ModelMembers
from anechoic.torch.watching.modules import MIXING, check_not_mixing
from anechoic.torch.watching.parameters import ParameterWatch


class Guard:
    """Compares a run with what it was: settings, parameters, the model, and what the optimizer was told.

    Args:
        optimizer: the one of make_private.
        surroundings: random numbers, taken whenever the model works on a batch in hand.
    """

    def __init__(self, optimizer: Any, surroundings: Surroundings) -> None:
        self._optimizer, self._source = optimizer, optimizer.source
        module: nn.Module = self._source.setup.module
        self._bound: list[nn.Parameter] = self._source.parameters
        self._layout = [(p.shape, p.dtype, p.device) for p in self._bound]
        self._mixing = [layer for layer in module.modules() if isinstance(layer, MIXING)]
        self._members = ModelMembers(module)
        self._values = ParameterWatch(self._bound, lambda: _still(module))
        self.expect()
        called = module if self._source.by_layers else self._source.module  # else it runs row by row
        self._source.check_weights = self._values.check_parameters
        check = self._source.check_weights if self._source.by_layers else None  # else the call itself asks
        before = BeforeCall(optimizer.ledger, surroundings, check)
        self._hook = called.register_forward_pre_hook(before, prepend=True)  # before anything that draws

    def expect(self) -> None:
        """The settings are right as they are now."""
        self._settings = self._read()

    def retake(self) -> None:
        """Parameters, buffers and frozen parameters are right as they are now."""
        self._values.retake()

    def released(self) -> None:
        """The update was made: parameters are right as they are now."""
        self._values.released()

    def detach(self) -> None:
        """Let go of the model."""
        self._hook.remove()

    def check(self) -> None:
        """Refuse a step of a run that is not what it was.

        Raises:
            GuaranteeError: if something else than step() changed the model, or a setting follows a batch.
            MismatchError: if a setting or the set of parameters is another one.
        """
        self._source.check_ready()
        self._check_settings()
        self._check_parameters()
        self._check_groups()
        check_not_mixing(self._mixing)  # first: in train() mode its statistics change, too
        self._values.check()

    def check_model(self) -> None:
        """Refuse a model that something else than step() changed.

        Raises:
            GuaranteeError, MismatchError: naming what changed.
        """
        self._members.check()
        self._values.check()

    def _read(self) -> dict[str, Any]:
        optimizer, source = self._optimizer, self._source
        return {
            "optimizer.max_grad_norm": optimizer.max_grad_norm,
            "optimizer.noise_multiplier": optimizer.noise_multiplier,
            "optimizer.expected_batch_size": optimizer.expected_batch_size,
            "optimizer.loss_reduction": optimizer.loss_reduction,
            "optimizer.source.clipping": source.clipping,
            "optimizer.release.divisor": optimizer.release.divisor,
            **source.settings(),
        }

    def _check_settings(self) -> None:
        for name, value in self._read().items():
            if value != self._settings[name]:
                raise MismatchError(
                    f"{name}={value} was {self._settings[name]} when the run began, and the mechanism was"
                    " calibrated for that: set it back, and leave out what changes it (a noise scheduler or a"
                    " grad_clip scheduler of Opacus: no ExponentialNoise(optimizer, …), and no step() of it)."
                    " Another value needs another mechanism, in a run of its own."
                )

    def _check_parameters(self) -> None:
        now = self._optimizer.params
        if len(now) != len(self._bound) or any(p is not q for p, q in zip(now, self._bound, strict=True)):
            raise MismatchError(
                f"the optimizer has {len(now)} trainable parameters that are not the {len(self._bound)} of"
                " make_private: parameters cannot be frozen, unfrozen, added or replaced during a run,"
                " because the noise of every step goes with all of them. Freeze before make_private."
            )
        self._members.check()
        for p, (shape, dtype, device) in zip(self._bound, self._layout, strict=True):
            if (p.shape, p.dtype, p.device) != (shape, dtype, device):
                raise MismatchError(
                    f"a parameter is {p.dtype} {tuple(p.shape)} on {p.device}, and was {dtype}"
                    f" {tuple(shape)} on {device}: move and cast the model before make_private."
                )

    def _check_groups(self) -> None:
        for group in self._optimizer.param_groups:
            for name, value in group.items():
                if name != "params" and (among(value) or self._source.types.knows(value)):
                    raise GuaranteeError(
                        f"param_groups: {name}={value} was computed from a batch, or a number that was taken"
                        " out of one (.item()), so the update tells what the release does not. Nothing was"
                        " released. Set it by the number of the step, or by what was released."
                    )


class BeforeCall:
    """Forward pre-hook of the model: its weights are what was released whenever it works on a batch in hand.

    Per-example gradients at weights that hold something of other examples are not those of single examples,
    also if the weights are put back before step().

    Args:
        check: looks at the weights; None for a source that does so itself, in its call of the model.
    """

    def __init__(self, ledger: Any, surroundings: Surroundings, check: Callable[[], None] | None) -> None:
        self._ledger, self._surroundings, self._check = ledger, surroundings, check

    def __call__(self, *_: Any) -> None:
        if self._ledger.in_hand is not None:
            self._surroundings.take()
            if self._check is not None and torch.is_grad_enabled():
                with paused():
                    self._check()

    def __reduce__(self) -> Any:  # a copy of the model is another model
        return idle, ()


def _still(module: nn.Module) -> dict[str, Tensor]:
    """Tensors that training must not change, by name: buffers and frozen parameters."""
    frozen = {name: p for name, p in module.named_parameters() if not p.requires_grad}
    return {**dict(module.named_buffers()), **frozen}
