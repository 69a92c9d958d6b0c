"""grad_sample_mode="auto": a rule over the classes of modules, seen in the run, its log and checkpoint."""

import logging
from inspect import signature

import pytest
from torch import nn

from anechoic.errors import MismatchError, UnsupportedError
from anechoic.torch import PrivacyEngine
from anechoic.torch.sources import automatic
from anechoic.torch.sources.automatic import chosen_mode
from tests.torch.setting import network, start, train

CONVOLUTIONS = nn.Sequential(
    nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(16, 3)
)


class Own(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)


class OwnLinear(nn.Linear):
    """May do anything in forward()."""


@pytest.mark.parametrize(
    ("module", "mode"),
    [
        (network(), "vmap"),
        (CONVOLUTIONS, "vmap"),
        (nn.Sequential(nn.Embedding(5, 4), nn.LayerNorm(4), nn.Flatten(), nn.Linear(8, 2)), "vmap"),
        (network(dropout=0.5), "hooks"),
        (nn.Sequential(nn.Linear(3, 2), nn.Dropout(0.0)), "vmap"),
        (nn.Sequential(nn.Linear(3, 2), nn.RReLU()), "hooks"),
        (Own(nn.Linear(3, 2)), "hooks"),
        (nn.Sequential(OwnLinear(3, 2)), "hooks"),
        (nn.Linear(2**9, 2**9, bias=False), "vmap"),
        (nn.Linear(2**9, 2**9), "hooks"),
        (nn.Linear(3, 2, device="meta"), "hooks"),
        (nn.Sequential(nn.Conv3d(1, 1, 1), nn.Flatten()), "hooks"),
        (Own(nn.LSTM(3, 2)), "vmap"),
        (Own(nn.MultiheadAttention(4, 2)), "vmap"),
        (nn.Sequential(nn.Linear(3, 2), Own(nn.GRU(3, 2).requires_grad_(False))), "hooks"),
    ],
)
def test_the_rule(module, mode):
    assert chosen_mode(module, wrap=True) == mode
    assert chosen_mode(module, wrap=False) == "hooks"


def test_nothing_on_the_list_draws_random_numbers():
    drawing = {*automatic._DROPOUTS, nn.RReLU, nn.FractionalMaxPool2d, nn.TransformerEncoderLayer}
    assert not drawing & automatic._MEASURED


@pytest.mark.parametrize(("dropout", "mode"), [(0.0, "vmap"), (0.5, "hooks")])
def test_the_mode_is_seen_logged_and_saved(dropout, mode, tmp_path, caplog):
    keys = {"noise_key": bytes([77 + (mode == "vmap")]) * 32, "sampling_key": bytes(32)}  # of no other test

    def made(mode):
        return start(mode, model=network(dropout=dropout), keys=False, engine=keys)

    with caplog.at_level(logging.INFO, logger="anechoic"):
        run = made("auto")
    assert f"grad_sample_mode='auto': {mode!r}" in caplog.text
    assert run.optimizer.source.mode == mode
    train(run, 3)
    run.engine.save_checkpoint(path=str(tmp_path / "run"))
    made(mode).engine.load_checkpoint(path=str(tmp_path / "run"))
    other = "hooks" if mode == "vmap" else "vmap"
    with pytest.raises(MismatchError, match=f"grad_sample_mode={other} was {mode}"):
        made(other).engine.load_checkpoint(path=str(tmp_path / "run"))


def test_it_is_the_default():
    for method in (PrivacyEngine.make_private, PrivacyEngine.make_private_with_epsilon):
        assert signature(method).parameters["grad_sample_mode"].default == "auto"


def test_what_opacus_alone_has_is_still_refused():
    with pytest.raises(UnsupportedError, match="'ew' is not supported"):
        start("ew")
    with pytest.raises(ValueError, match="automatic"):
        start("automatic")
