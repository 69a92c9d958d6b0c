"""What a training step draws is a function of the sampling key and t, and of nothing else."""

import random

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset

from anechoic.errors import GuaranteeError, UnsupportedError
from anechoic.torch import PrivacyEngine
from anechoic.torch import generators as randomness
from tests.torch.setting import FEATURES, data, managed, mechanism, network, start, step, train, weights


def draw():
    """One number of each global generator."""
    return random.random(), float(np.random.rand()), float(torch.rand(1)), float(torch.randn(1))  # noqa: NPY002


def scramble(seed):
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(seed)


def dropped(**options):
    return start(mech=mechanism("poisson"), model=network(dropout=0.5), **options)


@pytest.mark.parametrize("mode", ["rows", "ghost"])
def test_masks_do_not_depend_on_the_seed_of_the_script(mode):
    """Before the run, and between a batch and the model, where whoever knows the script would know masks."""
    found = []
    for seed in (1, 2):
        scramble(seed)
        run = dropped(mode=mode)
        for batch in run.loader:
            scramble(seed)
            step(run, batch)
        found.append(weights(run.model))
    assert torch.equal(*found)


def test_masks_depend_on_the_sampling_key():
    first, second = dropped(), dropped()
    second.loader.feed.key = bytes(32)
    drawn = []
    for run in (first, second):
        next(iter(run.loader))
        drawn.append(draw())
    assert all(one != other for one, other in zip(*drawn, strict=True))


def test_between_two_steps_the_generators_go_on_where_they_were():
    scramble(3)
    expected = [draw() for _ in range(4)]
    scramble(3)
    run = dropped()
    batches = iter(run.loader)
    assert draw() == expected[0]
    batch = next(batches)
    draw()
    step(run, batch)
    assert draw() == expected[1]
    batch = next(batches)
    run.optimizer.abandon_batch()
    assert draw() == expected[2]
    next(iter(run.loader))  # left without a step
    iter(run.loader)
    assert draw() == expected[3]


def test_a_batch_that_comes_again_draws_the_same():
    run = dropped()
    next(iter(run.loader))
    first = draw()
    next(iter(run.loader))
    assert draw() == first


def test_micro_batches_draw_apart_and_are_given_back():
    run = start(mech=mechanism("fixed"))
    scramble(3)
    outside = draw()
    scramble(3)
    drawn = []
    with managed(run, 4) as batches:
        for batch in batches:
            drawn.append(draw())
            step(run, batch)
            if run.engine.releases:
                break
    assert len(set(drawn)) == len(drawn) == 2
    assert draw() == outside


def test_an_unknown_layout_of_the_generator_is_refused(monkeypatch):
    monkeypatch.setattr(randomness, "cpu_state", lambda words, number: torch.zeros(5056, dtype=torch.uint8))
    randomness.check_layout.cache_clear()
    with pytest.raises(GuaranteeError, match="laid out in another way"):
        randomness.check_layout()
    randomness.check_layout.cache_clear()


# Data sets with generators of their own.


class Own(Dataset):
    """Draws augmentations as `draw` says, which belongs to the data set."""

    def __init__(self, draw):
        self.plain, self.draw = data(40), draw

    def __len__(self):
        return 40

    def __getitem__(self, index):
        x, y = self.plain[index]
        return x + self.draw(index), y


def numpy_generator():
    source = np.random.default_rng(0)
    return lambda index: torch.from_numpy(source.normal(size=FEATURES)).float()


def torch_generator():
    source = torch.Generator().manual_seed(0)
    return lambda index: torch.rand(FEATURES, generator=source)


def python_generator():
    source = random.Random(0)
    return lambda index: source.random()


def coin():
    source = np.random.default_rng(0)
    return lambda index: float(source.random() < 0.5)


@pytest.mark.parametrize("made", [numpy_generator, torch_generator, python_generator, coin])
@pytest.mark.parametrize("workers", [0, 2])
def test_generators_of_the_data_set_are_refused(made, workers):
    with pytest.raises(UnsupportedError, match=r"of its own.*numpy\.random\.default_rng\(torch"):
        start(dataset=Own(made()), loader={"num_workers": workers})


def test_a_collate_function_with_a_generator_is_refused():
    source = torch.Generator()

    def collate(examples):
        x, y = torch.utils.data.default_collate(examples)
        return {"x": x, "more": [y, torch.rand(3, generator=source)]}

    with pytest.raises(UnsupportedError, match="collate_fn gives other values"):
        start(loader={"collate_fn": collate})


def from_global_generators(index):
    source = np.random.default_rng(torch.randint(2**62, ()).item())
    return torch.rand(FEATURES) + float(source.random()) + float(np.random.rand())  # noqa: NPY002


@pytest.mark.parametrize("drawn", [from_global_generators, lambda i: np.random.default_rng(i).random()])
def test_the_remedy_is_taken(drawn):
    run = start(dataset=Own(drawn))
    train(run, 2)


def test_trying_changes_no_global_state():
    scramble(4)
    expected = draw()
    scramble(4)
    start(dataset=Own(from_global_generators), loader={"num_workers": 0})
    assert draw() == expected


# Keys.


def test_functions_give_keys_when_the_run_begins():
    asked = []

    def key():
        asked.append(1)
        return bytes(range(32))

    engine = PrivacyEngine(noise_key=key, sampling_key=lambda: bytes(32))
    assert not asked
    keys = engine._keys.draw()
    assert keys.noise == bytes(range(32)) and keys.given
    with pytest.raises(ValueError, match="noise_key has 3 bytes"):
        PrivacyEngine(noise_key=lambda: b"abc")._keys.draw()
    with pytest.raises(ValueError, match="two different keys"):
        PrivacyEngine(noise_key=lambda: bytes(32), sampling_key=lambda: bytes(32))._keys.draw()
