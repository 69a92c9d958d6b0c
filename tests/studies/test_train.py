import gzip
import json

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("opacus")

from anechoic.losses.dispatch import loss  # noqa: E402
from anechoic.mechanism.mechanism import Mechanism  # noqa: E402
from anechoic.sampling import FixedOrder  # noqa: E402
from anechoic.strategies import Toeplitz  # noqa: E402
from anechoic.workloads import prefix_sum  # noqa: E402
from studies.comparison.runner import run_study  # noqa: E402
from studies.tasks import FashionMNIST  # noqa: E402
from studies.train import fashion_study, flights_study, with_damped  # noqa: E402
from studies.training import execute  # noqa: E402


@pytest.fixture
def images(tmp_path):
    """A folder of four IDX files: 96 images to train on and 32 to test on, each labelled by a bright row."""
    rng = np.random.default_rng(0)
    for name, count in (("train", 96), ("t10k", 32)):
        labels = rng.integers(0, 10, count).astype(np.uint8)
        pixels = rng.integers(0, 60, (count, 28, 28)).astype(np.uint8)
        pixels[np.arange(count), 2 * labels] = 255
        header = b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (count, 28, 28))
        (tmp_path / f"{name}-images-idx3-ubyte.gz").write_bytes(gzip.compress(header + pixels.tobytes()))
        header = b"\0\0\x08\x01" + count.to_bytes(4, "big")
        (tmp_path / f"{name}-labels-idx1-ubyte.gz").write_bytes(gzip.compress(header + labels.tobytes()))
    return str(tmp_path)


DAMPED_AND_PLANNED = ("damped-fixed-eps1", "damped-fixed-eps4", "planned-fixed-eps1")


def mechanisms(study):
    return {arm.name: Mechanism.from_json(arm.mechanism) for arm in study.arms if arm.private}


@pytest.mark.slow
def test_both_ways_of_sampling_share_their_code_path(images, tmp_path, capsys):
    study = fashion_study(
        images, batch_size=32, epochs=2, sampling="both", strategy="identity", epsilons=(10.0,), rates=(3.0,)
    )
    found = mechanisms(study)
    # three batches a pass; identity alone: nothing to compare it with
    assert study.steps == 6 and list(found) == ["planned-fixed-eps10", "planned-poisson-eps10"]
    fixed, sampled = (m.sampling for m in found.values())
    assert isinstance(fixed, FixedOrder) and sampled.amplified
    study = with_damped(study)  # for what is not sampled
    assert [arm.name for arm in study.arms if arm.kind == "damped"] == ["damped-fixed-eps10"]
    kept = tmp_path / "kept"
    kept.mkdir()
    about = {"title": "t", "command": "c", "out": tmp_path / "out", "jobs": 0, "execute": execute}
    record = run_study(study, **about, checkpoint=str(kept))
    shown = capsys.readouterr().out
    assert "| poisson | example | 10 | – |" in shown and "| damped root | planned mechanism |" in shown
    assert record == json.loads((tmp_path / "out" / "results.json").read_text())
    assert record["comparisons"] == []
    assert all(arm["best"]["mean"] > 0.2 for arm in record["arms"])  # better than guessing, in six steps
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["results.json"]
    texts = [arm["mechanism"]["json"] for arm in record["arms"] if arm["mechanism"]]
    assert texts == [arm.mechanism for arm in study.arms if arm.private]
    assert len(list(kept.glob("*.json"))) == len(study.runs())


@pytest.mark.slow
def test_the_damping_is_the_best_for_steps_and_participation(images):
    study = with_damped(fashion_study(images, batch_size=8, epochs=3, epsilons=(1.0, 4.0), rates=(1.0,)))
    found, sums = mechanisms(study), prefix_sum(36)
    low, high, planned = (found[name] for name in DAMPED_AND_PLANNED)
    assert low.sampling == planned.sampling == FixedOrder(96, 8, steps=36)
    assert low.epsilon() <= 1.0 and low.noise_std > high.noise_std
    promise = planned.sampling.participation
    reached = loss(sums, low.strategy, promise, "rms")
    others = [loss(sums, Toeplitz.damped(36, nu), promise, "rms") for nu in np.geomspace(1e-4, 0.9, 12)]
    assert reached <= min(others) * (1 + 1e-9) < loss(sums, Toeplitz.damped(36, 0.0), promise, "rms")


@pytest.mark.slow
def test_planned_strategy_can_be_named():
    study = flights_study(examples=5_120, strategy="blt", epsilons=(0.5,))
    found = mechanisms(study)
    assert "BLT" in found["planned-fixed-eps0.5"].strategy.describe()
    assert "Identity" in found["independent-fixed-eps0.5"].strategy.describe()
    # one pass in time order: nobody takes part twice, and each mechanism keeps to its budget
    for mechanism in found.values():
        assert mechanism.sampling == FixedOrder(5_120, 256, steps=20, drop_last=True)
        assert mechanism.epsilon() <= 0.5 and mechanism.delta == 1e-6


def test_bad_lengths_and_sizes(images):
    with pytest.raises(ValueError, match="at most one of the two"):
        fashion_study(images, steps=3, epochs=1)
    with pytest.raises(ValueError, match="model='mlp' is unknown"):
        FashionMNIST(images, "mlp")
    with pytest.raises(ValueError, match="examples"):
        FashionMNIST(images, examples=10)
