"""What a user's own project writes, for type checkers alone: mypy and pyright must infer what is asserted."""

from typing import assert_type

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import anechoic as an
from anechoic import streaming
from anechoic.linear import LogisticRegression
from anechoic.torch import PrivacyEngine


def design(examples: int) -> an.Mechanism:
    order = an.sampling.FixedOrder(examples=examples, batch_size=100, epochs=1)
    best = an.optimize.banded_toeplitz(an.workloads.prefix_sum(order.steps), bands=8)
    mechanism = an.calibrate(best.strategy, sampling=order, epsilon=1.0, delta=1e-6)
    assert_type(order.steps, int)
    assert_type(best.loss, float)
    assert_type(mechanism, an.Mechanism)
    assert_type(mechanism.epsilon(), float)
    assert_type(mechanism.to_json(), str)
    assert_type(mechanism.report("markdown"), str)
    assert_type(an.Mechanism.from_json(mechanism.to_json()), an.Mechanism)
    return mechanism


def choose() -> str:
    plan = an.plan(examples=10_000, batch_size=100, epochs=1, epsilon=1.0, delta=1e-6)
    assert_type(plan.mechanism, an.Mechanism)
    return plan.reason


def rows(mechanism: an.Mechanism) -> NDArray[np.float64]:
    stream = an.noise.NoiseStream(mechanism.strategy, 3)
    row, _ = stream.next(stream.init())
    return np.asarray(row, dtype=np.float64)  # of NumPy or of torch, as the stream's backend is


def train(features: torch.Tensor, labels: torch.Tensor) -> float:
    model: nn.Module = nn.Linear(features.shape[1], 2)
    engine = PrivacyEngine()
    private, optimizer, loader = engine.make_private_with_epsilon(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=DataLoader(TensorDataset(features, labels), batch_size=10),
        target_epsilon=1.0,
        target_delta=1e-6,
        epochs=1,
        max_grad_norm=1.0,
    )
    for x, y in loader:
        optimizer.zero_grad()
        torch.autograd.backward(nn.functional.cross_entropy(private(x), y))  # Tensor.backward has no types
        optimizer.step()
    assert_type(engine.releases, int)
    return engine.get_epsilon(1e-6)


def tables(x: NDArray[np.float64], y: NDArray[np.int64]) -> float:
    model = LogisticRegression(epsilon=1, feature_bounds=(0, 1), classes=[0, 1]).fit(x, y)
    assert_type(model, LogisticRegression)
    return model.epsilon_


def count() -> float:
    visits = streaming.Stream(streaming.Count(), epsilon=1.0, horizon=24)
    visits.update(3)
    return visits.release().epsilon


def wrong() -> None:
    an.calibrate(
        "no strategy", epsilon=1.0, delta=1e-6
    )  # wrong: a checker that says nothing here sees no types
    PrivacyEngine(accountant=3)  # wrong
