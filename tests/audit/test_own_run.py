"""The recipe of docs/audit.md: canaries in somebody's own training run, beside ordinary examples."""

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from anechoic.mechanism.calibrate import calibrate
from anechoic.sampling import FixedOrder
from anechoic.strategies import Toeplitz
from anechoic.torch import ReleaseRecorder
from anechoic.workloads import prefix_sum

DOCS = Path(__file__).resolve().parents[2] / "docs" / "audit.md"


def recipe():
    """The Python blocks of the page, one after the other."""
    blocks = DOCS.read_text(encoding="utf-8").split("```python\n")[1:]
    return "\n".join(block.split("```")[0] for block in blocks)


@pytest.fixture
def setting(monkeypatch):
    # the audit may be wrong in one of twenty runs: its tests repeat one of them
    number = itertools.count()
    monkeypatch.setattr("anechoic.torch.run.new_key", lambda: next(number).to_bytes(32, "big"))
    torch.manual_seed(0)
    strategy = Toeplitz.square_root(prefix_sum(12))
    sampling = FixedOrder(600, 200, steps=12)
    mechanism = calibrate(strategy, sampling=sampling, noise_multiplier=1 / 3, delta=1e-5, clip_norm=0.5)
    return {"mech": mechanism, "x": torch.randn(400, 6), "y": torch.randint(2, (400,))}


@pytest.mark.slow
def test_the_recipe_of_the_docs_runs_and_passes(setting):
    exec(recipe(), setting)
    report = setting["report"]
    assert not report.violated, str(report)
    assert report.canaries == (100, 100)
    assert report.finding("canary fit").found > 2.0
    assert setting["recorder"].rows.shape == (12, 200)


@pytest.mark.slow
def test_a_lack_of_noise_in_ones_own_run_is_seen(setting, monkeypatch):
    from anechoic.mechanism import mechanism

    real = mechanism.NoiseStream

    def stream(*args, std, **options):
        return real(*args, std=std / 1.5, **options)

    monkeypatch.setattr(mechanism, "NoiseStream", stream)
    exec(recipe(), setting)
    report = setting["report"]
    assert report.finding("covariance").violated
    assert report.finding("canary fit").violated


def test_the_recorder_keeps_sums_in_clip_norms(setting):
    mechanism = replace(setting["mech"], noise_std=1e-6)
    from torch.utils.data import DataLoader, TensorDataset

    from anechoic.torch import PrivacyEngine

    for reduction in ("mean", "sum"):
        layer = torch.nn.Linear(3, 1, bias=False)
        data = TensorDataset(10 * torch.ones(600, 3))
        model, inner, loader = PrivacyEngine().make_private(
            module=layer, optimizer=torch.optim.SGD(layer.parameters(), lr=0.1),
            data_loader=DataLoader(data, batch_size=200), mechanism=mechanism, loss_reduction=reduction,
        )  # fmt: skip
        whole, some = (
            ReleaseRecorder(inner, mechanism),
            ReleaseRecorder(inner, mechanism, directions=np.eye(3)[:2]),
        )
        for (x,) in loader:
            inner.zero_grad()
            getattr(model(x), reduction)().backward()
            inner.step()
        assert whole.rows == pytest.approx(np.full((3, 3), 200 / np.sqrt(3)), rel=1e-4)
        assert some.rows == pytest.approx(np.full((3, 2), 200 / np.sqrt(3)), rel=1e-4)
