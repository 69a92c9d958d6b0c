"""The scripts of examples/ run as they are, at a small size, and learn; a row's gradient is its own."""

import logging
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F

from anechoic.torch import PrivacyEngine
from tests.torch.sums import check_release

pytestmark = pytest.mark.slow
FOLDER = Path(__file__).resolve().parents[3] / "examples"
ROWS = 10


def loaded(name, monkeypatch):
    """The script as a module, without its main()."""
    if find_spec("sklearn") is None:
        pytest.skip("scikit-learn is not installed")
    module = ModuleType(name)
    monkeypatch.setitem(sys.modules, name, module)
    exec(compile((FOLDER / f"{name}.py").read_text("utf-8"), f"{name}.py", "exec"), vars(module))
    return module


#: How many epochs a test takes, and what the script then prints: a number's name, and whether it passes.
RUNS = {
    "diffusion": (10, r"loss ([\d.]+) before, ([\d.]+) after", lambda before, after: after < 0.9 * before),
    "graph": (12, r"accuracy ([\d.]+)", lambda accuracy: accuracy > 0.2),
    "recommender": (3, r"AUC ([\d.]+)", lambda area: area > 0.6),
    "unet": (2, r"score ([\d.]+)", lambda score: score > 0.35),
    "vit": (8, r"accuracy ([\d.]+)", lambda accuracy: accuracy > 0.15),
    "windows": (2, r"accuracy ([\d.]+)", lambda accuracy: accuracy > 0.3),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_script_trains_within_its_epsilon(name, monkeypatch, capsys, caplog):
    module = loaded(name, monkeypatch)
    epochs, words, good = RUNS[name]
    monkeypatch.setattr(sys, "argv", [f"{name}.py", "--epochs", str(epochs), "--epsilon", "50"])
    with caplog.at_level(logging.WARNING, logger="anechoic"):
        module.main()
    said = capsys.readouterr().out
    assert good(*map(float, re.search(words, said).groups()))
    assert 45 < float(re.search(r"epsilon ([\d.]+)", said).group(1)) <= 50
    assert "one after another" not in caplog.text


def images(module):
    x = torch.rand(ROWS, module.SIDE, module.SIDE, generator=torch.Generator().manual_seed(0))
    return {"x": x, "y": torch.arange(ROWS)}


def vit(module):
    tensors = images(module)
    tensors["x"] = tensors["x"][:, None]
    return module.ViT, tensors


def windows(module):
    def make():
        blocks = (module.Block(0), module.Block(module.WINDOW // 2))
        head = torch.nn.Linear(module.SIDE**2 * module.WIDTH, 10)
        model = torch.nn.Sequential(torch.nn.Linear(1, module.WIDTH), *blocks, torch.nn.Flatten(), head)
        for block in blocks:
            torch.nn.init.normal_(block.bias)
        return model

    tensors = images(module)
    tensors["x"] = tensors["x"][..., None]
    return make, tensors


def graph(module):
    nodes, adjacency, there, target = (t[:ROWS] for t in module.graphs())
    return module.GraphNetwork, {"nodes": nodes, "near": adjacency, "there": there, "y": target}


def diffusion(module):
    source = torch.Generator().manual_seed(0)
    x = torch.randn(ROWS, module.PIXELS, generator=source)
    times = torch.randint(module.TIMES, (ROWS,), generator=source)
    return module.Denoiser, {"x": x, "time": times, "y": torch.randn(x.shape, generator=source)}


def unet(module):
    def make():
        network = torch.nn.Sequential(module.UNet(1, 8, levels=2), torch.nn.Conv2d(8, 1, 1))
        return PrivacyEngine.get_compatible_module(network)

    return make, {name: t[:ROWS] for name, t in zip("xy", module.images(), strict=True)}


def recommender(module):
    names = ("taken", "offered", "y")
    return module.TwoTowers, {name: t[:ROWS] for name, t in zip(names, module.ratings(), strict=True)}


@pytest.mark.parametrize("shape", [unet, recommender, vit, windows, graph, diffusion])
def test_a_release_of_the_model_is_that_of_single_rows(shape, monkeypatch):
    make, tensors = shape(loaded(shape.__name__, monkeypatch))

    def loss(model, batch):
        *inputs, target = batch.values()
        out = model(*inputs)
        return F.mse_loss(out, target) if out.shape == target.shape else F.cross_entropy(out, target)

    check_release(make, tensors, loss, mode="auto", clip=0.01, noise=1e-5, bits=24)


def test_windows_that_a_shift_brings_together_do_not_see_each_other(monkeypatch):
    """A pixel knows none from the opposite border, though a moved window holds both."""
    module = loaded("windows", monkeypatch)
    torch.manual_seed(0)
    block = module.Block(module.WINDOW // 2)
    x = torch.randn(1, module.SIDE, module.SIDE, module.WIDTH)
    other = x.clone()
    other[:, -1, -1].normal_()  # shares a moved window with the first pixel, and no border
    assert torch.allclose(block(x)[:, 0, 0], block(other)[:, 0, 0], atol=1e-6)
    block.apart.fill_(False)
    assert not torch.allclose(block(x)[:, 0, 0], block(other)[:, 0, 0], atol=1e-4)


def test_times_and_noise_are_those_of_each_row(monkeypatch):
    module = loaded("diffusion", monkeypatch)
    seen = []

    def model(x, time):
        seen.append(time)
        return torch.zeros_like(x)

    torch.manual_seed(0)
    loss = module.loss_of(model, torch.zeros(4000, module.PIXELS))
    assert len(seen[0].unique()) == module.TIMES
    assert float(loss) == pytest.approx(1.0, abs=0.05)  # of a model that finds no noise: its variance
