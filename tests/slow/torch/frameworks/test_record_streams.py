"""WebDataset and Hugging Face's streaming data sets as records that come once: bounded, resumed, refused."""

import gc
from itertools import count, pairwise

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader

import anechoic as an
from anechoic.errors import ReplayError
from anechoic.participation import MinSep
from anechoic.torch import PrivacyEngine, RecordStream

wds, datasets = pytest.importorskip("webdataset"), pytest.importorskip("datasets")
digits, parquet = pytest.importorskip("sklearn.datasets"), pytest.importorskip("pyarrow.parquet")
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")]

B, STEPS, RULE, AT = 60, 30, MinSep(5, 4), 5


@pytest.fixture(autouse=True)
def closed():
    """WebDataset leaves shards that were begun open: here they are closed, where the warning is let pass."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The digits in thirty shards and in a file of Parquet: pixels, label, and one of 150 owners."""
    folder, (x, y) = tmp_path_factory.mktemp("digits"), digits.load_digits(return_X_y=True)
    x, owner = (x / 16).astype("f4"), np.random.default_rng(0).integers(150, size=len(x))
    with wds.ShardWriter(str(folder / "%d.tar"), maxcount=60, verbose=0) as shards:
        for i, (pixels, label, one) in enumerate(zip(x, y.tolist(), owner, strict=True)):
            shards.write({"__key__": f"{i:04}", "x.npy": pixels, "cls": label, "id.txt": f"u{one}"})
    table = datasets.Dataset.from_dict({"x": x, "y": y, "id": owner})
    table.to_parquet(folder / "digits.parquet")
    return folder


def web(place, **options):
    files = [str(place / f"{i}.tar") for i in range(30)]
    return wds.WebDataset(files, **{"shardshuffle": False, **options}).decode()


def hub(place):
    options = {"data_files": str(place / "digits.parquet"), "cache_dir": str(place)}
    return datasets.load_dataset("parquet", split="train", streaming=True, **options)


def blurred(one):
    return {**one, "x": torch.tensor(one["x"]) + 0.01 * torch.rand(64) + float(np.random.rand())}  # noqa: NPY002


READ = {
    "web": web,
    "web, in tuples": lambda place: web(place).to_tuple("id.txt", "x.npy", "cls"),
    "web, shuffled": lambda place: web(place, shardshuffle=30, seed=1).shuffle(100, seed=1),
    "web, repeated": lambda place: web(place).with_epoch(5000),
    "hub": hub,
    "hub, of torch": lambda place: hub(place).with_format("torch"),
    "hub, shuffled": lambda place: hub(place).shuffle(seed=1, buffer_size=100),
    "hub, augmented": lambda place: hub(place).map(blurred),
    "hub, repeated": lambda place: hub(place).repeat(3),
}


def owner_of(one):
    return one[0] if isinstance(one, tuple) else one.get("id", one.get("id.txt"))


def row_of(one):
    x, y = (
        one[1:] if isinstance(one, tuple) else (one.get("x", one.get("x.npy")), one.get("y", one.get("cls")))
    )
    return torch.as_tensor(x), int(y)


class Run:
    """A run of a linear model: what was released, whose records were used, and their rows."""

    def __init__(self, records):
        self.used, self.rows, self.engine = [], [], PrivacyEngine()
        torch.manual_seed(0)
        self.stream = RecordStream(
            records, batch_size=B, steps=STEPS, participation=RULE, owner=owner_of, record=self.noted
        )
        self.net = torch.nn.Linear(64, 10)
        self.net, self.optimizer, self.feed = self.engine.make_private(
            module=self.net,
            optimizer=torch.optim.SGD(self.net.parameters(), lr=0.5),
            data_loader=DataLoader(self.stream, batch_size=B),
            mechanism=an.calibrate(
                an.strategies.Identity(STEPS),
                sampling=an.sampling.External(RULE, B, STEPS),
                noise_multiplier=1e-6,
                delta=1e-5,
                unit="user",
            ),
            max_grad_norm=1.0,
        )

    def noted(self, one):
        self.used.append((self.engine.releases, owner_of(one)))
        return row_of(one)

    def train(self, most=STEPS):
        found = []
        for x, y in self.feed:
            self.rows.append((x, y, [p.detach().clone() for p in self.net.parameters()]))
            self.optimizer.zero_grad()
            cross_entropy(self.net(x), y).backward()
            self.optimizer.step()
            found.append(torch.cat([p.grad.reshape(-1) for p in self.net.parameters()]))
            if len(found) == most:
                break
        return torch.stack(found)

    def clipped(self):
        """The releases without their noise: row after row, clipped to norm 1, over the public batch size."""
        for x, y, weights in self.rows:
            total = torch.zeros(650)
            for one, label in zip(x, y, strict=True):
                w, b = (part.clone().requires_grad_() for part in weights)
                parts = torch.autograd.grad(cross_entropy(w @ one + b, label), (w, b))
                flat = torch.cat([part.reshape(-1) for part in parts])
                total += flat / max(1.0, float(flat.norm()))
            yield total / B


@pytest.mark.parametrize("name", READ)
def test_an_epoch_keeps_to_the_promise_and_goes_on_where_it_was(name, place, tmp_path, other_process):
    whole = Run(READ[name](place))
    released = whole.train()
    assert len(released) == STEPS
    torch.testing.assert_close(released, torch.stack(list(whole.clipped())), rtol=1e-4, atol=1e-5)
    for owner in {owner for _, owner in whole.used}:
        steps = sorted({step for step, one in whole.used if one == owner})
        assert len(steps) <= 4 and all(b - a >= 5 for a, b in pairwise(steps))
        assert len(steps) == sum(one == owner for _, one in whole.used)
    assert whole.stream.left_out + len(whole.used) == (B * STEPS if "repeated" in name else 1797)
    begun = Run(READ[name](place))
    begun.train(AT)
    begun.engine.save_checkpoint(path=tmp_path / "run.ckpt")
    other_process()
    again = Run(READ[name](place))
    again.engine.load_checkpoint(path=tmp_path / "run.ckpt")
    torch.testing.assert_close(again.train(), released[AT:], rtol=1e-3, atol=1e-4)


REFUSED = {
    "shuffled": (lambda place: web(place).shuffle(100), "begins otherwise .* a shuffle a seed"),
    "resampled": (lambda place: web(place, resampled=True), "begins otherwise|in the same order"),
    "shuffled by another seed": (
        lambda place: web(place).shuffle(100, seed=next(SEEDS)),
        "a RecordStream: with the same records in the same order",
    ),
    "read once": (lambda place: iter(hub(place)), "it is a generator"),
    "augmented": (
        lambda place: web(place).map(lambda one: {**one, "x.npy": np.random.default_rng().random(64)}),
        "draw augmentation from random",
    ),
    "batched": (lambda place: web(place).to_tuple("id.txt").batched(10).map(tuple), "unit id of type list"),
}
SEEDS = count()


@pytest.mark.parametrize("name", REFUSED)
def test_what_comes_otherwise_every_time_is_refused(name, place, tmp_path, other_process):
    """At once where the first records tell, else when the run is to go on."""
    make, match = REFUSED[name]
    with pytest.raises((ValueError, ReplayError), match=match):
        begun = Run(make(place))
        begun.train(AT)
        begun.engine.save_checkpoint(path=tmp_path / "run.ckpt")
        other_process()
        Run(make(place)).engine.load_checkpoint(path=tmp_path / "run.ckpt")
