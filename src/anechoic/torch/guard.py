"""What must be as it was when the run began, or nothing is released: asked once, first of all in a step.

Tensors are compared by their bits: version counters say nothing of `.data`, of fused optimizers and of code
that torch does not see.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable
from functools import cache, partial
from operator import is_not
from typing import Any

import torch
from torch import Tensor, nn

from anechoic.errors import GuaranteeError, MismatchError
from anechoic.torch.randomness.modes import paused
from anechoic.torch.randomness.rng_stack import Surroundings
from anechoic.torch.row_types.numbers import among
from anechoic.torch.structure import PLAIN, Idle, bits


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
        self._values = ParameterWatch(self._bound, partial(_still, module))
        #: all tensors of the model are right as they are now; the parameters are, as the update was made
        self.retake, self.released = self._values.retake, self._values.released
        self.expect()
        called = module if self._source.by_layers else self._source.module  # else it runs row by row
        self._source.check_weights = self._values.check_parameters
        check = self._source.check_weights if self._source.by_layers else None  # else the call itself asks
        before = BeforeCall(optimizer.ledger, surroundings, check)
        self._hook = called.register_forward_pre_hook(before, prepend=True)  # before anything that draws

    def expect(self) -> None:
        """The settings are right as they are now."""
        self._settings = self._read()

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
        if len(now) != len(self._bound) or any(map(is_not, now, self._bound)):
            raise MismatchError(
                f"the optimizer has {len(now)} trainable parameters that are not the {len(self._bound)} of"
                " make_private: parameters cannot be frozen, unfrozen, added or replaced during a run,"
                " because the noise of every step goes with all of them. Freeze before make_private; or train"
                " all of them, and give those that are to rest for some time a parameter group with lr 0."
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
                if type(value) in PLAIN or name == "params":
                    continue
                if among(value) or self._source.types.knows(value):
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
        return Idle, ()


def _still(module: nn.Module) -> dict[str, Tensor]:
    """Tensors that training must not change, by name: buffers and frozen parameters."""
    frozen = {name: p for name, p in module.named_parameters() if not p.requires_grad}
    return {**dict(module.named_buffers()), **frozen}


class ModelMembers:
    """Remembers a model's parameters by identity, in all their places.

    A layer that joins the model later is trained by nobody here: whoever trains it uses gradients that are
    not clipped and hold no noise, and the model that is released holds it.

    Args:
        module: the user's, plain.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = module
        self._kept = list(module.parameters())  # so that no other tensor gets the identity of one of them
        self._known = self._now()

    def check(self) -> None:
        """Compare with what was there.

        Raises:
            MismatchError: naming the first parameter that appeared, is gone, or is another one.
        """
        now = self._now()
        if now == self._known:
            return
        name = min(n for n in now.keys() | self._known.keys() if now.get(n) != self._known.get(n))
        if name not in self._known:
            what = "appeared in the model"
        elif name not in now:
            what = "is gone from the model"
        elif now[name][0] != self._known[name][0]:
            what = "was replaced by another parameter"
        else:
            what = "was unfrozen" if now[name][1] else "was frozen"
        raise MismatchError(
            f"{name} {what} after make_private: it is not among the parameters whose gradients are clipped"
            " and get noise, and whatever else trains it would show the data. Nothing was released. Build the"
            " whole model, freeze what is to be frozen, and then call make_private; change values by"
            " load_state_dict, before the first batch."
        )

    def _now(self) -> dict[str, tuple[int, bool]]:
        named = self._module.named_parameters(remove_duplicate=False)
        return {name: (id(p), p.requires_grad) for name, p in named}


#: Layers whose output for one example depends on the others of the batch, unless in eval() mode.
MIXING = (nn.modules.batchnorm._BatchNorm,)
_REPLACING = (
    "Put nn.GroupNorm in its place before the optimizer is made, as model ="
    " PrivacyEngine.get_compatible_module(model) does."
)


def check_not_mixing(layers: Iterable[nn.Module]) -> None:
    """Refuse batch normalisation by the statistics of the batch, trainable or not: it mixes the examples.

    Raises:
        GuaranteeError: if one of the layers is in train() mode, or keeps no statistics to use in eval() mode.
    """
    found = [layer for layer in layers if isinstance(layer, MIXING)]
    own = [type(layer).__name__ for layer in found if not type(layer).__module__.startswith("torch.")]
    remedy = _REPLACING
    if own:  # a converter of torch's layers does not know what their forward() adds
        remedy = (
            f"{own[0]} is a class of its own that normalises by the batch, which no converter knows: put"
            " nn.GroupNorm, and behind it what the class adds (an activation), in its place by hand."
        )
    if any(layer.running_mean is None and layer.running_var is None for layer in found):
        raise GuaranteeError(
            "a batch normalisation layer keeps no running statistics (track_running_stats=False), so it mixes"
            " the examples of a batch in eval() mode too, and clipping one example's gradient does not bound"
            f" what it changes. {remedy}"
        )
    if any(layer.training for layer in found):
        raise GuaranteeError(
            "a batch normalisation layer is in train() mode: it mixes the examples of a batch, so clipping"
            " one example's gradient does not bound what it changes. Keep it in eval() mode throughout, or"
            f" replace it. {remedy}"
        )


#: Entries of trainable parameters that are kept as copies; more of them by checksums.
COPIED = 20_000_000
#: Entries of buffers and frozen parameters that are compared in every step, the smallest tensors first. Of
#: each larger one a stretch is, at a secret place, and the version counter.
COMPARED = 10_000_000
#: Words of 8 bytes in a row, which has a checksum of its own; rows in a stretch.
_ROW, _STRETCH = 2**14, 32
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}


class ParameterWatch:
    """Remembers tensors of the model, and refuses a release where something else than step() changed them.

    Args:
        parameters: the trainable ones.
        still: buffers and frozen parameters, by name: those that training never changes.
    """

    def __init__(self, parameters: list[nn.Parameter], still: Callable[[], dict[str, Tensor]]) -> None:
        self._parameters, self._still = parameters, still
        self._copies: list[Tensor] = []
        self._bits = [_INTEGERS[p.element_size()] for p in parameters]
        if sum(p.numel() for p in parameters) <= COPIED:
            self._copies = [p.detach().clone() for p in parameters]
            self._views = [copy.view(kind) for copy, kind in zip(self._copies, self._bits, strict=True)]
        self.retake()

    def retake(self) -> None:
        """Take all tensors as they are now."""
        self._kept = {}
        total = 0
        for name, tensor in sorted(self._still().items(), key=lambda item: item[1].numel()):
            total += tensor.numel()
            self._kept[name] = _Kept(tensor, whole=total <= COMPARED)
        self.released()

    def released(self) -> None:
        """Take the trainable parameters as they are now: step() has just changed them."""
        if self._copies:
            torch._foreach_copy_(self._copies, [p.detach() for p in self._parameters])
        else:
            self._sums = [checksum(p) for p in self._parameters]

    def check(self) -> None:
        """Compare with what was taken.

        Raises:
            GuaranteeError: naming what changed.
        """
        now = self._still()
        changed = [
            name
            for name in now.keys() | self._kept.keys()
            if name not in now or name not in self._kept or not self._kept[name].same(now[name])
        ]
        if changed:
            name = min(changed)
            grown = self._growth(name, now.get(name))
            if grown:
                raise GuaranteeError(
                    f"{name} {grown} in a forward pass: its size would show the longest input so far, without"
                    " noise. Run the model once on the longest input there can be before make_private, under"
                    " torch.no_grad(), so that it never grows; or compute it anew in each forward pass."
                )
            raise GuaranteeError(
                f"{name} changed during training without noise: buffers"
                " (such as the statistics of batch normalisation) and frozen parameters must stay as they"
                " are. Keep such layers in eval() mode, or replace them."
            )
        self.check_parameters()

    def check_parameters(self) -> None:
        """Compare the trainable parameters alone.

        Raises:
            GuaranteeError: if one changed since the last release, even if it is to be put back.
        """
        if self._copies:
            own = [p.detach().view(kind) for kind, p in zip(self._bits, self._parameters, strict=True)]
            same = all(map(torch.equal, self._views, own))
        else:
            same = all(map(torch.equal, map(checksum, self._parameters), self._sums))
        if not same:
            raise GuaranteeError(
                "a trainable parameter was changed by something else than optimizer.step(), which alone clips"
                " and adds noise: a second optimizer, an edit in place (p.sub_(p.grad)), or a layer that"
                " changes its own weights, or a change that is put back before step(), as of SAM. Load"
                " weights after make_private and before the first batch; to evaluate averaged weights, put"
                " them into a copy of the model."
            )

    def _growth(self, name: str, tensor: Tensor | None) -> str:
        if name not in self._kept:
            return "appeared"
        before = self._kept[name].layout[0]
        if tensor is not None and tensor.shape != before:
            return f"went from shape {tuple(before)} to {tuple(tensor.shape)}"
        return ""


class _Kept:
    """A tensor as it was."""

    def __init__(self, tensor: Tensor, *, whole: bool) -> None:
        self.layout = _layout(tensor)
        self._version = (id(tensor), tensor._version)
        readable = tensor.layout is torch.strided and not tensor.is_quantized and not tensor.is_meta
        self._copy = tensor.detach().clone() if readable and whole else None
        self._sums = checksum(tensor) if readable and not whole else None

    def same(self, tensor: Tensor) -> bool:
        """Whether a tensor is the kept one, as far as it is compared."""
        if self.layout != _layout(tensor):
            return False
        if self._copy is not None:
            return _equal(self._copy, tensor)
        if self._version != (id(tensor), tensor._version):
            return False
        if self._sums is None:
            return True
        start = secrets.randbelow(max(1, len(self._sums) - _STRETCH + 1))
        part = bits(tensor.detach())[8 * _ROW * start : 8 * _ROW * (start + _STRETCH)]
        return torch.equal(self._sums[start : start + _STRETCH], checksum(part))


def _layout(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.dtype, tensor.device


def _equal(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of one layout have the same bits: a NaN equals itself, and 0 does not equal -0."""
    kind = _INTEGERS[one.element_size()]
    return torch.equal(one.view(kind), other.detach().view(kind))


def checksum(tensor: Tensor) -> Tensor:
    """Sums of the words of a tensor's memory modulo 2^64, two a row of words, with secret weights.

    A change of a row goes unseen with probability 2^-32 or less, whatever it is: a difference of words that
    is no multiple of 2^32 is seen by the first sum, any other by that of the upper halves.
    """
    found = bits(tensor.detach())
    if len(found) % 8 or found.storage_offset() % 8:
        padded = found.new_zeros(-(-len(found) // 8) * 8)
        padded[: len(found)] = found
        found = padded
    words = found.view(torch.int64)
    rows = len(words) // _ROW
    parts = [_sums(part) for part in words[: rows * _ROW].view(rows, _ROW).split(_STRETCH)]
    rest = words[rows * _ROW :]
    return torch.cat([*parts, _sums(rest[None])]) if len(rest) else torch.cat(parts)


def _sums(words: Tensor) -> Tensor:
    """Weighted sums of rows of words, shape (rows, 2)."""
    both = [value[: words.shape[1]] for value in _weights(words.device)]
    if words.device.type == "cpu":
        return torch.stack([words @ both[0], (words >> 32) @ both[1]], dim=1)
    return torch.stack([(words * both[0]).sum(1), ((words >> 32) * both[1]).sum(1)], dim=1)


@cache
def _weights(device: torch.device) -> tuple[Tensor, Tensor]:
    """Numbers that nobody knows."""
    drawn = torch.frombuffer(bytearray(os.urandom(16 * _ROW)), dtype=torch.int64).to(device)
    return drawn[:_ROW], drawn[_ROW:]
