"""What Opacus's engine says of a module before anything is made private."""

from __future__ import annotations

from typing import Any

from opacus.validators import ModuleValidator
from torch import nn, optim


class Compatible:
    """The methods of Opacus's engine that only look at a module, with Opacus's answers."""

    def is_compatible(
        self, *, module: nn.Module, optimizer: optim.Optimizer | None = None, data_loader: Any = None
    ) -> bool:
        """Whether Opacus can compute the module's per-example gradients."""
        return bool(ModuleValidator.is_valid(module))

    def validate(
        self, *, module: nn.Module, optimizer: optim.Optimizer | None = None, data_loader: Any = None
    ) -> None:
        """Raise opacus.validators.errors.UnsupportedModuleError where `is_compatible` is False."""
        ModuleValidator.validate(module, strict=True)

    @classmethod
    def get_compatible_module(cls, module: nn.Module) -> nn.Module:
        """A copy of `module` with the layers replaced that mix examples (BatchNorm by GroupNorm)."""
        fixed: nn.Module = ModuleValidator.fix(module)
        ModuleValidator.validate(fixed, strict=True)
        return fixed
