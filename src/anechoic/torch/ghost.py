"""Ghost clipping, watched: exactly one clipped backward pass a batch, with norms of that pass.

Opacus clips inside the backward() of the loss that its criterion returns: a first pass for the norms of
the per-example gradients, then a second one, of the reweighted loss, with the module's hooks switched
off. The module classes here report each phase, because p.grad alone does not show how it came about.

The second pass differentiates whatever the loss depends on, but the first one measures only what passes
through hooked layers: so before both, the graph of the loss must reach every parameter through calls of
hooked layers alone, and the loss must be one number an example.
"""

from __future__ import annotations

from typing import Any

import torch
from opacus.grad_sample import GradSampleHooksFastGradientClipping, GradSampleModuleFastGradientClipping
from torch import Tensor, nn

from anechoic.errors import DesynchronizedError, GuaranteeError, MismatchError
from anechoic.torch.ghost_graph import USES, mark_call
from anechoic.torch.gradients import clear_hooks
from anechoic.torch.watch import bits

_SLACK = 1e-3  # of the bound on the sum, for rounding


class GhostWatch:
    """What has happened since the last step: clipped passes, their examples, and the gradients they left.

    Args:
        clip_norm: what every pass must clip to.
    """

    def __init__(self, clip_norm: float) -> None:
        self._clip_norm = clip_norm
        self.reset()

    def reset(self) -> None:
        """Forget everything: the gradients were summed, or given up."""
        self.passes = 0
        self.examples = 0
        self._hooks_fired = False
        self._left: dict[int, tuple[int, int]] = {}
        self._kept: dict[int, Tensor] = {}

    def cleared(self) -> None:
        """zero_grad() was called. Opacus calls it in the middle of each pass, which does not count."""
        if not self._hooks_fired:
            self.reset()

    def hooks_fired(self, parameters: list[nn.Parameter]) -> None:
        """The first phase reached a layer; norms of earlier passes are dropped when a pass begins."""
        if not self._hooks_fired:
            self._hooks_fired = True
            for p in parameters:
                if hasattr(p, "_norm_sample"):
                    del p._norm_sample

    def norms(self, norms: Tensor, clip_norm: float) -> None:
        """The second phase begins, with these norms of the per-example gradients.

        Raises:
            MismatchError: if it would clip to another norm than the mechanism's.
            GuaranteeError: if the norms are too coarse.
        """
        if clip_norm != self._clip_norm:
            raise MismatchError(
                f"module.max_grad_norm={clip_norm} was {self._clip_norm} when the run began, and the"
                " mechanism was calibrated for that: set it back."
            )
        if norms.dtype not in (torch.float32, torch.float64):
            raise GuaranteeError(
                f"ghost clipping measured the gradients in {norms.dtype}, which rounds norms by up to 1 %:"
                " run without autocast, or use grad_sample_mode='hooks', which measures them in float32."
            )
        self.passes += 1
        self.examples = len(norms)

    def finished(self, parameters: list[nn.Parameter]) -> None:
        """The second phase ended: the gradients are clipped, and must stay as they are."""
        self._hooks_fired = False
        total = _total_norm(parameters)
        bound = self.examples * self._clip_norm * (1 + _SLACK)
        if bound < total < float("inf"):  # step() refuses what is not finite
            raise GuaranteeError(
                f"the sum of {self.examples} clipped gradients has norm {total:.6g}, above {self.examples} *"
                f" clip norm = {self.examples * self._clip_norm:.6g}: something was not clipped, so nothing"
                " is released. Use grad_sample_mode='hooks'."
            )
        self._left = {id(p): _mark(p) for p in parameters}
        self._kept = {
            id(p): p.grad.detach().clone(memory_format=torch.contiguous_format)
            for p in parameters
            if p.grad is not None
        }

    def aborted(self, parameters: list[nn.Parameter]) -> None:
        """A pass failed halfway: nothing of it may be used."""
        self.reset()
        for p in parameters:
            p.grad = None
            if hasattr(p, "_norm_sample"):
                del p._norm_sample

    def intact(self, parameters: list[nn.Parameter]) -> bool:
        """Whether the gradients are those that the last pass left, to the bit."""
        return all(
            self._left.get(id(p)) == _mark(p)
            and p.grad is not None
            and torch.equal(bits(self._kept[id(p)]), bits(p.grad.detach()))
            for p in parameters
        )

    def kept(self, parameters: list[nn.Parameter]) -> list[Tensor]:
        """The sums that the last pass left, which are none of the user's tensors."""
        return [self._kept[id(p)] for p in parameters]

    def check_fired(self) -> None:
        """Refuse to clip by norms that no hook has just computed."""
        if not self._hooks_fired:
            raise DesynchronizedError(
                "the hooks that compute per-example norms did not run in this backward pass: do not call"
                " disable_hooks(), and let forward and backward passes alternate."
            )


def _mark(p: nn.Parameter) -> tuple[int, int]:
    return (0, 0) if p.grad is None else (id(p.grad), p.grad._version)


def _total_norm(parameters: list[nn.Parameter]) -> float:
    norms = [
        torch.linalg.vector_norm(p.grad.detach(), dtype=torch.float64)
        for p in parameters
        if p.grad is not None
    ]
    return float(torch.stack(norms).norm(2)) if norms else 0.0


class _Watched:
    """Mixin over Opacus's modules for ghost clipping; `watch` is set before any hook can fire."""

    watch: GhostWatch
    trainable_parameters: list[nn.Parameter]
    _clipping = False

    def capture_activations_hook(self, module: nn.Module, forward_input: Any, output: Any) -> None:
        before = len(getattr(module, "activations", ()))
        super().capture_activations_hook(module, forward_input, output)  # type: ignore[misc]
        if len(getattr(module, "activations", ())) == before:
            return
        known = self._known(module)
        edges = mark_call(module, forward_input, output)
        if known and any(edges.get(id(p), 1) != 1 for p in module.parameters()):
            raise DesynchronizedError(
                f"a call of {type(module).__name__} used one of its parameters several times (does a hook"
                f" change its output?), but is measured as using it once. {USES}."
            )

    def check_call(self, module: nn.Module, arguments: Any, keywords: dict[str, Any]) -> None:
        """Forward pre-hook: refuse arguments that Opacus leaves out when it measures.

        Raises:
            GuaranteeError: naming them.
        """
        if not module.training or not torch.is_grad_enabled():
            return
        if keywords:
            raise GuaranteeError(
                f"{type(module).__name__} was called with keyword arguments {sorted(keywords)}, which the"
                " norms of its gradients would leave out: pass its input by position."
            )
        if len(arguments) != 1 and not self._known(module):
            raise GuaranteeError(
                f"{type(module).__name__} was called with {len(arguments)} arguments, but its gradients are"
                " measured with the first alone: pass one tensor, or use grad_sample_mode='hooks'."
            )

    def _known(self, module: nn.Module) -> bool:
        return type(module) in self.NORM_SAMPLERS or type(module) in self.GRAD_SAMPLERS  # type: ignore[attr-defined]

    def capture_backprops_hook(self, *args: Any, **kwargs: Any) -> None:
        if self.hooks_enabled:  # type: ignore[attr-defined]
            self.watch.hooks_fired(self.trainable_parameters)
        super().capture_backprops_hook(*args, **kwargs)  # type: ignore[misc]

    def get_clipping_coef(self) -> Tensor:
        self.watch.check_fired()
        missing = sum(not hasattr(p, "_norm_sample") for p in self.trainable_parameters)
        if missing:
            raise DesynchronizedError(
                f"the loss did not reach {missing} of {len(self.trainable_parameters)} parameters: freeze"
                " those that it does not depend on before make_private."
            )
        coefficients: Tensor = super().get_clipping_coef()  # type: ignore[misc]
        self.watch.norms(self.per_sample_gradient_norms, self.max_grad_norm)  # type: ignore[attr-defined]
        self._clipping = True
        return coefficients

    def abort(self) -> None:
        """Give up a pass that failed."""
        self._clipping = False
        self.watch.aborted(self.trainable_parameters)
        clear_hooks(self)

    def enable_hooks(self) -> None:
        super().enable_hooks()  # type: ignore[misc]
        if self._clipping:
            self._clipping = False
            self.watch.finished(self.trainable_parameters)


class WatchedGhostModule(_Watched, GradSampleModuleFastGradientClipping):  # type: ignore[misc]
    """Opacus's wrapper for ghost clipping, watched."""


class WatchedGhostHooks(_Watched, GradSampleHooksFastGradientClipping):  # type: ignore[misc]
    """Opacus's hooks for ghost clipping without a wrapper (wrap_model=False), watched."""


def watched_module(module: nn.Module, *, wrap: bool, **options: Any) -> Any:
    """`module` prepared for ghost clipping, with a watch.

    Args:
        module: the plain module.
        wrap: whether to wrap it or only to attach hooks.
        options: batch_first, loss_reduction, max_grad_norm.
    """
    prepared: Any = (WatchedGhostModule if wrap else WatchedGhostHooks)(module, **options)
    prepared.watch = GhostWatch(prepared.max_grad_norm)
    for layer in prepared.iterate_submodules(prepared._module):
        handle = layer.register_forward_pre_hook(prepared.check_call, with_kwargs=True)
        prepared._module.autograd_grad_sample_hooks.append(handle)
    return prepared
