"""A run: everything that one make_private ties together, and the keys it runs under."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from anechoic.batches import Batches
from anechoic.mechanism import Mechanism
from anechoic.torch.ledger import ReleaseLedger
from anechoic.torch.loader import PrivateDataLoader
from anechoic.torch.optimizer import CorrelatedOptimizer
from anechoic.torch.release import Release
from anechoic.torch.single import Single
from anechoic.torch.sources import GradientSource


@dataclass
class Run(Single):
    """Objects of one private training run.

    Attributes:
        mechanism: what is released, and its guarantee.
        ledger: how far the run is.
        plain: the user's module.
        source, release: what makes the sums, and what adds the noise.
        optimizer, loader: what the engine returned.
        batches_under: batches for a sampling key.
        noise_key, sampling_key: 32 secret bytes each.
    """

    mechanism: Mechanism
    ledger: ReleaseLedger
    plain: nn.Module
    source: GradientSource
    release: Release
    optimizer: CorrelatedOptimizer
    loader: PrivateDataLoader
    batches_under: Callable[[bytes], Batches]
    noise_key: bytes
    sampling_key: bytes

    @property
    def module(self) -> Any:
        """What the training loop calls: a wrapper around the user's module, or its hooks."""
        return self.source.module

    def start(self) -> None:
        """Begin at release 0."""
        self.ledger.start(self.noise_key)
        stream = self.release.start_noise(self.noise_key)
        self.release.take_noise(stream, stream.init())

    def resume(self, noise_key: bytes, sampling_key: bytes, noise: Mapping[str, Any]) -> Callable[[], None]:
        """Prepare to go on under other keys from a saved noise state; what is returned carries it out."""
        stream = self.release.start_noise(noise_key)
        state = stream.restore(noise)
        batches = self.batches_under(sampling_key)

        def carry_out() -> None:
            self.ledger.start(noise_key, state.step)
            self.release.take_noise(stream, state)
            self.loader.feed.batches, self.loader.feed.key = batches, sampling_key
            self.noise_key, self.sampling_key = noise_key, sampling_key

        return carry_out


def watched_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Tensors that training must not change, by name: buffers and frozen parameters."""
    frozen = {name: p for name, p in module.named_parameters() if not p.requires_grad}
    return {**dict(module.named_buffers()), **frozen}
