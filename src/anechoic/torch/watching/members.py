"""Which parameters a model has, where, and which of them train: the same throughout a run."""

from __future__ import annotations

from torch import nn

from anechoic.errors import MismatchError


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
