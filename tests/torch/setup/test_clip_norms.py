"""The words clipping= and max_grad_norm= of make_private: what is clipped together, and what is refused."""

import math
from fractions import Fraction

import pytest
import torch

from anechoic.errors import MismatchError, UnsupportedError
from anechoic.mechanism.mechanism import Mechanism
from anechoic.sampling import FixedOrder
from anechoic.strategies import Identity
from anechoic.torch import PrivacyEngine
from anechoic.torch.setup.clip_norms import GAMMA, fitted, flat_norm
from anechoic.torch.sources.clipping import GridClipping
from tests.marks import in_turn, slow
from tests.torch.setting import data, mechanism, network, private, start, step


@in_turn("norms", [[0.5] * 4, [0.3, 0.4], [1e-300, 1e-310], {"a": 3, "b": 4.0}, [1e200, 1e150], [0.1] * 50])
def test_the_flat_norm_is_never_less_than_the_root_of_the_squares(norms):
    listed = list(norms.values()) if isinstance(norms, dict) else norms
    found = flat_norm(norms)
    assert sum(Fraction(norm) ** 2 for norm in listed) <= Fraction(found) ** 2
    assert found <= math.hypot(*listed) * (1 + 1e-14)
    assert sum(Fraction(norm) ** 2 for norm in fitted(listed, 0.7)) <= Fraction(0.7) ** 2
    assert math.hypot(*fitted(listed, 0.7)) == pytest.approx(0.7)
    assert fitted([0.5] * 4, flat_norm([0.5] * 4)) == (0.5,) * 4 and flat_norm(2.5) == 2.5


@pytest.mark.slow
def test_a_planned_mechanism_has_the_flat_norm_and_its_grid():
    run = start(mech=mechanism("poisson"), clipping="per_layer", max_grad_norm=[0.5] * 4, keys=False)
    assert run.mechanism.clip_norm == 1.0
    private(
        engine := PrivacyEngine(), loader=run.plain, to_epsilon=True, target_epsilon=8.0, target_delta=1e-3,
        epochs=1, mechanism="identity", clipping="per_group", max_grad_norm={"*.weight": 3.0, "*.bias": 4.0},
    )  # fmt: skip
    assert engine.mechanism.clip_norm == 5.0
    clipping = engine._run.source.clipping
    assert isinstance(clipping, GridClipping) and clipping.parts.places == (0, 1, 0, 1)


@pytest.mark.parametrize(
    ("word", "norm", "error", "message"),
    [
        ("adaptive", 1.0, UnsupportedError, "clipping='adaptive'.*'automatic'"),
        ("per-layer", 1.0, ValueError, "clipping='per-layer'"),
        ("flat", [1.0], ValueError, "a list of norms is that of clipping='per_layer'"),
        ("flat", {"*": 1.0}, ValueError, "clipping='per_group'"),
        ("per_layer", {"*": 1.0}, ValueError, "clipping='per_group'"),
        ("per_group", [1.0], ValueError, "clipping='per_layer'"),
        ("per_group", None, ValueError, "give norms by patterns of names"),
        ("per_group", {}, ValueError, "must map patterns"),
        ("per_group", {0: 1.0}, ValueError, "must map patterns"),
        ("per_group", {"0.*": 1.0}, ValueError, "no pattern for '2.weight'"),
        ("per_group", {"*": 1.0, "0.*": 1.0}, ValueError, r"no trainable parameter is left for '0\.\*'"),
        ("per_layer", [1.0] * 3, ValueError, "3 norms, and the optimizer has 4"),
        ("per_layer", [1.0, 1.0, 0.0, 1.0], ValueError, "a norm of max_grad_norm"),
        ("per_layer", [float("nan")] * 4, ValueError, "a norm of max_grad_norm"),
        ("per_layer", "1111", ValueError, "max_grad_norm='1111'"),
        ("per_layer", [0.6] * 4, MismatchError, "max_grad_norm=1.2"),
        ("automatic", 2.0, MismatchError, "max_grad_norm=2.0"),
    ],
)
def test_what_means_nothing_is_refused(word, norm, error, message):
    model, given = network(), {} if norm is None else {"max_grad_norm": norm}
    with pytest.raises(error, match=message):
        start(model=model, clipping=word, **given)
    assert "forward" not in model[0].__dict__


def norms_of_release(mode, clipping, norm, scale):
    """Norms of the four parameters' sums, of one row with gradients of size `scale`, at next to no noise."""
    mech = Mechanism(Identity(1), FixedOrder(1, 1, 1), 1e-9, flat_norm(norm))
    model = network()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(scale)
    run = start(mode, mech=mech, model=model, dataset=data(1), clipping=clipping, max_grad_norm=norm)
    step(run, next(iter(run.loader)))
    return [float(p.grad.norm()) for p in model.parameters()]


@pytest.mark.parametrize("mode", ["rows", *slow("ghost", "vmap_loss")])
def test_a_release_keeps_every_bound(mode):
    tiny = [1e-3, 2e-3, 3e-3, 4e-3]
    found = norms_of_release(mode, "per_layer", tiny, 1.0)
    assert found == pytest.approx(tiny, rel=1e-4), "each is longer than its bound, and is cut to it"
    found = norms_of_release(mode, "per_group", {"0.*": 1e-3, "*": 5e-3}, 1.0)
    assert math.hypot(*found[:2]) == pytest.approx(1e-3, rel=1e-4)
    assert math.hypot(*found[2:]) == pytest.approx(5e-3, rel=1e-4)
    plain = norms_of_release(mode, "flat", 1e6, 1.0)
    whole = math.hypot(*plain)
    found = norms_of_release(mode, "automatic", 1e3, 1.0)
    assert math.hypot(*found) == pytest.approx(1e3 * whole / (whole + GAMMA), rel=1e-4)


@pytest.mark.slow
def test_a_run_goes_on_with_the_clipping_that_it_began_with(tmp_path):
    path = tmp_path / "run.ckpt"
    for words in ({"clipping": "automatic"}, {"clipping": "per_layer", "max_grad_norm": 1.0}, {}):
        run = start(**words)
        step(run, next(iter(run.loader)))
        run.engine.save_checkpoint(path=path)
        for others in ({}, {"clipping": "automatic"}, {"clipping": "per_layer", "max_grad_norm": [0.5] * 4}):
            again = start(**others)
            if words.get("clipping") == others.get("clipping"):
                assert again.engine.load_checkpoint(path=path) is not None
                continue
            with pytest.raises(MismatchError, match="clipping=.* was .* in the checkpoint"):
                again.engine.load_checkpoint(path=path)
        path.unlink()


def test_layers_of_units_are_clipped_by_unit():
    """Two examples of one unit add up before they are clipped, part by part."""
    mech = Mechanism(Identity(1), FixedOrder(1, 1, 1), 1e-9, flat_norm([1e-3] * 4), unit="user")
    run = start(
        mech=mech, dataset=data(2), unit_ids=["ann", "ann"], clipping="per_layer", max_grad_norm=[1e-3] * 4,
        shuffle=False,
    )  # fmt: skip
    step(run, next(iter(run.loader)))
    assert [float(p.grad.norm()) for p in run.model.parameters()] == pytest.approx([1e-3] * 4, rel=1e-4)
