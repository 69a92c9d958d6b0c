"""What must be as it was when the run began, or nothing is released."""

from __future__ import annotations

from collections.abc import Iterable
from operator import is_not
from typing import Any

from torch import nn
from torch.optim import Optimizer

from anechoic.errors import GuaranteeError, MismatchError
from anechoic.torch.labels import labels_written, mark_of
from anechoic.torch.structure import word_sums


class Guard:
    """Compare a run with what it was: settings, parameters and the model.

    Trainable parameters are compared by sums over their words (before a call of the model only where a
    version counter moved), so weights that are put back, as those of an average after an evaluation, are the
    same. Other tensors of the model may be functions of the weights, as those of spectral norms are; what
    holds rows is refused. Each check raises GuaranteeError or MismatchError, naming what changed.
    """

    def __init__(self, module: nn.Module, parameters: list[nn.Parameter], optimizer: Optimizer) -> None:
        self._optimizer, self._bound = optimizer, parameters
        self._layout = self._layouts()
        self._module = module
        self._kept = list(module.parameters())  # so that no other tensor gets the identity of one of them
        self._known = self._members()
        self._mixing = [layer for layer in module.modules() if isinstance(layer, MIXING)]
        self._read: Any = lambda: {}
        self._settings: dict[str, Any] = {}
        self.released()

    def expect(self, read: Any) -> None:
        """Take the present settings, which `read` returns, as right."""
        self._read, self._settings = read, read()

    def released(self) -> None:
        """Take the weights as they are now: step() has changed them, or the run has not begun."""
        self._versions = [(id(p), p._version) for p in self._bound]
        self._sums = word_sums(self._bound)

    def check(self) -> None:
        """Refuse a step of a run that is not what it was."""
        self._check_settings()
        self._check_parameters()
        self._versions = []  # of fused optimizers and of .data they say nothing
        self.check_weights()

    def check_weights(self) -> None:
        """Refuse weights that something else than step() changed, and layers that mix rows."""
        if self._mixing:
            check_not_mixing(self._mixing)
        if self._versions != [(id(p), p._version) for p in self._bound]:
            if self._sums != word_sums(self._bound):
                raise GuaranteeError(
                    "a trainable parameter was changed by something else than optimizer.step(), which alone"
                    " clips and adds noise: a second optimizer, an edit in place (p.sub_(p.grad)), a layer"
                    " that changes its own weights, or averaged weights. Load weights after make_private and"
                    " before the first batch; to evaluate averaged weights, put them into a copy of the"
                    " model, or put the others back before the next batch."
                )
            self._versions = [(id(p), p._version) for p in self._bound]
        for name, tensor in self._module.named_buffers() if labels_written() else ():
            if mark_of(tensor) is not None:
                raise GuaranteeError(
                    f"rows of a batch were written into {name} of the model, without noise: later batches"
                    " would be clipped with it, and the released model holds it. Keep such statistics out of"
                    " the model (centres, queues and running means of a batch have no noise)."
                )

    def check_model(self) -> None:
        """Refuse a model that something else than step() changed."""
        self._check_members()
        self.check_weights()

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
        now = [p for group in self._optimizer.param_groups for p in group["params"] if p.requires_grad]
        if len(now) != len(self._bound) or any(map(is_not, now, self._bound)):
            raise MismatchError(
                f"the optimizer has {len(now)} trainable parameters that are not the {len(self._bound)} of"
                " make_private: parameters cannot be frozen, unfrozen, added or replaced during a run,"
                " because the noise of every step goes with all of them. Freeze before make_private; or train"
                " all of them, and give those that are to rest for some time a parameter group with lr 0."
            )
        self._check_members()
        for found, made in zip(self._layouts(), self._layout, strict=True):
            if found != made:
                raise MismatchError(
                    f"a parameter is {found}, and was {made}: move and cast the model before make_private."
                )

    def _layouts(self) -> list[Any]:
        return [(p.dtype, p.shape, p.device) for p in self._bound]

    def _check_members(self) -> None:
        """Refuse a layer that joined the model later: it is trained by gradients without noise."""
        now, known = self._members(), self._known
        if now == known:
            return
        name = min(n for n in now.keys() | known.keys() if now.get(n) != known.get(n))
        if name not in known:
            what = "appeared in the model"
        elif name not in now:
            what = "is gone from the model"
        elif now[name][0] != known[name][0]:
            what = "was replaced by another parameter"
        else:
            what = "was unfrozen" if now[name][1] else "was frozen"
        raise MismatchError(
            f"{name} {what} after make_private: it is not among the parameters whose gradients are clipped"
            " and get noise, and whatever else trains it would show the data. Nothing was released. Build the"
            " whole model, freeze what is to be frozen, and then call make_private; change values by"
            " load_state_dict, before the first batch."
        )

    def _members(self) -> dict[str, tuple[int, bool]]:
        named = self._module.named_parameters(remove_duplicate=False)
        return {name: (id(p), p.requires_grad) for name, p in named}


#: Layers whose output for one example depends on the others of the batch, unless in eval() mode.
MIXING = (nn.modules.batchnorm._BatchNorm,)
_KNOWN = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def check_not_mixing(layers: Iterable[nn.Module]) -> None:
    """Refuse batch normalisation by the statistics of the batch, trainable or not: it mixes the examples."""
    for layer in [layer for layer in layers if isinstance(layer, MIXING)]:
        if layer.running_mean is None and layer.running_var is None:
            what = (
                "keeps no running statistics (track_running_stats=False), so it mixes the examples of a batch"
                " in eval() mode too"
            )
            rest = ""
        elif layer.training:
            what = "is in train() mode: it mixes the examples of a batch"
            rest = "Keep it in eval() mode throughout, or replace it. "
        else:
            continue
        rest += "Put nn.GroupNorm in its place before the optimizer is made, "
        if type(layer) in _KNOWN:
            rest += "as model = PrivacyEngine.get_compatible_module(model) does."
        else:
            rest += "by hand, with what else the layer does (an activation): no tool knows subclasses."
        raise GuaranteeError(
            f"a batch normalisation layer ({type(layer).__name__}) {what}, and clipping one example's"
            f" gradient does not bound what it changes. {rest}"
        )
