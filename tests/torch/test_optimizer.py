"""One batch, one backward pass, one step, one release: every way to leave that track, in every mode."""

import os
import signal

import pytest
import torch
from opacus.optimizers import DPOptimizer
from torch import nn

from anechoic.errors import AnechoicError, DesynchronizedError, GuaranteeError, HorizonError, MismatchError
from anechoic.torch.noise_adder import NoiseAdder
from tests.torch.setting import (
    MODES,
    ONE_MODE,
    backward,
    data,
    managed,
    mechanism,
    network,
    start,
    step,
    train,
    weights,
)


def first(run):
    batches = iter(run.loader)
    return batches, next(batches)


def unharmed(run, releases, before):
    """Nothing was released, and the run can go on."""
    assert run.engine.releases == releases
    assert torch.equal(weights(run.model), before)


@pytest.mark.parametrize("mode", ONE_MODE)
@pytest.mark.slow
def test_break_resumes_at_the_release_count(mode):
    run, whole = start(mode), start(mode)
    for stop in (1, 4, 5, 9):
        for i, batch in enumerate(run.loader):
            step(run, batch)
            if run.engine.releases >= stop:
                break
            assert i < len(run.loader)
    assert torch.equal(train(run), train(whole))


@pytest.mark.parametrize("mode", ONE_MODE)
@pytest.mark.slow
def test_break_before_the_step_gives_the_same_batch_again(mode):
    run, whole = start(mode), start(mode)
    for _ in range(3):
        batches, batch = first(run)
        backward(run, batch)
        run.optimizer.zero_grad()
    assert torch.equal(train(run), train(whole))
    with pytest.raises(DesynchronizedError, match="stale"):
        next(batches)


@pytest.mark.parametrize("mode", ONE_MODE)
def test_step_without_a_batch_is_refused(mode):
    run = start(mode)
    before = weights(run.model)
    x, y = data(8).tensors
    backward(run, (x, y))
    with pytest.raises(DesynchronizedError, match="no batch was delivered for release 0"):
        run.optimizer.step()
    unharmed(run, 0, before)


@pytest.mark.parametrize("mode", ONE_MODE)
def test_gradients_of_another_number_of_examples_are_refused(mode):
    run = start(mode)
    _, (x, y) = first(run)
    before = weights(run.model)
    parts = (x[:5], y[:5]), (torch.cat([x, x]), torch.cat([y, y]))
    for part in parts[: 1 + (mode != "ghost")]:  # ghost clips the two entries of a row together
        run.optimizer.zero_grad()
        with pytest.raises(AnechoicError, match="does not have one row an example|mixes rows"):
            backward(run, part)
            run.optimizer.step()
    unharmed(run, 0, before)
    step(run, (x, y))


@pytest.mark.parametrize("mode", ONE_MODE)
def test_the_horizon_is_kept(mode):
    run = start(mode, mech=mechanism(steps=3))
    batches, batch = first(run)
    step(run, batch)
    step(run, next(batches))
    step(run, next(batches))
    with pytest.raises(StopIteration):
        next(batches)
    before = weights(run.model)
    with pytest.raises(HorizonError, match="all n=3 releases"):
        run.optimizer.step()
    with pytest.raises(HorizonError, match="all n=3 releases"):
        iter(run.loader)
    unharmed(run, 3, before)


# Ghost clipping: p.grad plays no part before the release.


def test_a_forward_pass_without_a_backward_pass_in_ghost_mode():
    run, other = start("ghost"), start("ghost")
    run.forward(torch.randn(3, 6))
    for batch in run.loader:
        run.forward(batch[0])
        step(run, batch)
        run.forward(torch.randn(2, 6))
    train(other, len(other.loader))
    assert torch.equal(weights(run.model), weights(other.model))


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(6, 2), nn.Linear(6, 2)
        self.both = True

    def forward(self, x):
        return self.left(x) + self.right(x) if self.both else self.left(x)


@pytest.mark.parametrize("mode", MODES)
def test_a_parameter_that_the_loss_does_not_reach_gets_noise_alone(mode):
    quiet = mechanism(noise_std=1e-12)
    run = start(mode, model=Branches(), mech=quiet)
    run.model.both = False
    before = run.model.left.weight.detach().clone(), run.model.right.weight.detach().clone()
    step(run, first(run)[1])
    assert (run.model.left.weight - before[0]).norm() > 1e-3
    assert torch.allclose(run.model.right.weight, before[1], atol=1e-6)


# What must not change during a run.


@pytest.mark.parametrize("mode", ("rows", "ghost"))
@pytest.mark.parametrize(
    "change",
    [
        lambda run: setattr(run.optimizer, "max_grad_norm", 2.0),
        lambda run: setattr(run.optimizer, "noise_multiplier", 0.1),
        lambda run: setattr(run.optimizer, "expected_batch_size", 16),
        lambda run: setattr(run.optimizer, "loss_reduction", "sum"),
        lambda run: run.model[0].weight.requires_grad_(False),
        lambda run: run.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(2))]}),
        lambda run: setattr(run.model[0].weight, "data", torch.zeros(5, 7)),
    ],
    ids=["clip", "noise", "divisor", "reduction", "frozen", "added", "shape"],
)
@pytest.mark.few(6)
def test_settings_and_parameters_must_stay(mode, change):
    run = start(mode)
    batches, batch = first(run)
    step(run, batch)
    run.optimizer.zero_grad()
    backward(run, next(batches))
    with pytest.raises(MismatchError):
        change(run)
        run.optimizer.step()
    assert run.engine.releases == 1


def test_a_setting_may_be_set_to_what_it_is():
    run = start()
    for name in ("max_grad_norm", "noise_multiplier", "expected_batch_size", "loss_reduction"):
        setattr(run.optimizer, name, getattr(run.optimizer, name))
    step(run, first(run)[1])
    assert run.engine.releases == 1


class Counting(nn.Module):
    """Adds up what it sees in a buffer, as batch normalisation does."""

    def __init__(self, update):
        super().__init__()
        self.register_buffer("seen", torch.zeros(6))
        self.update = update

    def forward(self, x):
        if self.training:
            self.update(self, x.detach())
        return x


def bound_anew(layer, x):
    layer.seen = layer.seen + x.sum(0)


@pytest.mark.parametrize("update", [lambda layer, x: layer.seen.add_(x.sum(0)), bound_anew])
def test_buffers_that_keep_rows_are_refused(update):
    run = start(model=nn.Sequential(Counting(update), *network()))
    _, batch = first(run)
    with pytest.raises(GuaranteeError, match=r"0.seen of the model keeps something of its inputs"):
        backward(run, batch)
    assert run.engine.releases == 0


def test_buffers_that_follow_from_the_weights_may_change():
    count = Counting(lambda layer, x: layer.seen.add_(1.0))
    model = nn.Sequential(count, *network())
    nn.utils.parametrizations.spectral_norm(model[1])
    run = start(model=model)
    train(run, 3)
    assert bool((count.seen >= 3).all())


def test_frozen_batch_normalisation_must_stay_in_eval_mode():
    model = nn.Sequential(nn.BatchNorm1d(6, affine=False), *network())
    with pytest.raises(GuaranteeError, match="batch normalisation"):
        start(model=model)
    model[0].eval()
    run = start(model=model)
    batches, batch = first(run)
    step(run, batch)
    batch = next(batches)
    run.module.train()
    with pytest.raises(GuaranteeError, match="batch normalisation"):
        step(run, batch)
    model[0].eval()
    step(run, batch)


@pytest.mark.parametrize("mode", ["rows", "ghost"])
def test_batch_normalisation_without_statistics_mixes_in_eval_mode_too(mode):
    model = nn.Sequential(nn.BatchNorm1d(6, affine=False, track_running_stats=False), *network())
    model[0].eval()
    with pytest.raises(GuaranteeError, match="track_running_stats=False"):
        start(mode, model=model)


def test_the_original_optimizer_cannot_be_stepped():
    held = []
    run = start(optimizer=lambda parameters: held.append(torch.optim.SGD(parameters, lr=0.1)) or held[0])
    _, batch = first(run)
    backward(run, batch)
    before = weights(run.model)
    with pytest.raises(GuaranteeError, match="stepped directly"):
        held[0].step()
    unharmed(run, 0, before)


def test_noise_is_drawn_within_a_release_only():
    run = start()
    backward(run, first(run)[1])
    with pytest.raises(GuaranteeError, match="noise is added by"):
        run.optimizer.noise_adder.noisy_gradients(0, [torch.zeros_like(p) for p in run.model.parameters()])


class Failing(torch.optim.Adam):
    """Fails once, before or in the midst of its update."""

    def __init__(self, *args, at=None, **kwargs):
        super().__init__(*args, **kwargs)
        self.at = at

    @torch.no_grad()
    def step(self, closure=None):
        at, self.at = self.at, None
        if at == "half":
            self.param_groups[0]["params"][0].add_(1.0)
        if at in ("start", "half"):
            raise torch.OutOfMemoryError("no room")
        return super().step(closure)


@pytest.mark.parametrize("at", ["start", "half", "hook", "post"])
def test_a_release_whose_update_failed_is_made_and_counts_once(at):
    run = start(optimizer=lambda p: Failing(p, at=at))
    batches, fails = iter(run.loader), [at]

    def fail(*_):
        if fails and fails.pop() in ("hook", "post"):
            raise OSError("the disk is full")

    if at == "hook":
        run.optimizer.attach_step_hook(fail)
    if at == "post":
        run.optimizer.register_step_post_hook(fail)
    with pytest.raises((OSError, torch.OutOfMemoryError)):
        step(run, next(batches))
    with pytest.raises(DesynchronizedError, match="no batch was delivered for release 1"):
        run.optimizer.step()
    assert run.engine.releases == run.optimizer.noise_adder.noise_state.step == 1
    step(run, next(batches))
    assert run.engine.releases == 2
    with pytest.raises(GuaranteeError, match="stepped directly"):
        run.optimizer.original_optimizer.step()


@pytest.mark.slow
def test_an_interrupted_partial_sum_is_refused_until_abandoned(monkeypatch):
    run, whole = start(), start()
    with managed(run, 3) as batches:
        iterator = iter(batches)
        step(run, next(iterator))
        batch = next(iterator)
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(NoiseAdder, "add_partial_sum", _interrupt)
            step(run, batch)
        with pytest.raises(DesynchronizedError, match="no batch was delivered"):
            step(run, batch)
        with pytest.raises(DesynchronizedError, match="summing a micro-batch of release 0 was interrupted"):
            next(iterator)
    run.optimizer.abandon_batch()
    assert torch.equal(train(run), train(whole))


def _interrupt(*_):
    raise KeyboardInterrupt


def test_a_noise_row_out_of_turn_is_refused():
    run = start()
    release = run.optimizer.noise_adder
    _, release.noise_state = release.stream.next(release.noise_state)
    before = weights(run.model)
    with pytest.raises(DesynchronizedError, match="noise row 1 is next, and release 0 due"):
        step(run, first(run)[1])
    assert torch.equal(weights(run.model), before)


# What belongs to training and must work.


def test_a_closure_is_evaluated_once():
    run, other = start(), start()
    calls = []
    for batch in run.loader:

        def closure(batch=batch):
            calls.append(1)
            run.optimizer.zero_grad()
            backward(run, batch)
            return torch.tensor(3.0)

        assert run.optimizer.step(closure).item() == 3.0
    assert len(calls) == len(run.loader)
    assert torch.equal(weights(run.model), train(other, len(other.loader)))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_an_example_without_finite_gradient_counts_as_zero(value):
    spoiled, clean = data(40), data(40)
    spoiled.tensors[0][3] = value
    run = start(dataset=spoiled, mech=mechanism(batch_size=40, steps=2, noise_std=1e-9))
    other = start(dataset=clean, mech=mechanism(batch_size=40, steps=2, noise_std=1e-9))
    _, (x, y) = first(run)
    step(run, (x, y))
    absent = clean.tensors[0][3].clone()
    _, (x, y) = first(other)
    other.optimizer.zero_grad()
    loss = nn.functional.cross_entropy(other.forward(x), y, reduction="none")
    keep = ~(x == absent).all(1)
    (loss * keep).mean().backward()
    other.optimizer.step()
    assert keep.sum() == 39
    assert torch.allclose(weights(run.model), weights(other.model), atol=1e-6)


class Impatient(torch.optim.SGD):
    """Somebody presses Ctrl-C in the middle of the update."""

    def step(self, closure=None):
        os.kill(os.getpid(), signal.SIGINT)
        return super().step(closure)


@pytest.fixture
def interruptible():
    """A shell that runs the tests in the background has switched Ctrl-C off."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_waits_until_the_release_is_whole():
    run = start(optimizer=lambda parameters: Impatient(parameters, lr=0.1))
    whole = start()
    batches = iter(run.loader)
    for made in (1, 2):
        with pytest.raises(KeyboardInterrupt):
            step(run, next(batches))
        assert run.engine.releases == made
    assert torch.equal(weights(run.model), train(whole, 2))


def test_the_returned_optimizer_is_a_torch_optimizer_and_none_of_opacus():
    run = start()
    assert isinstance(run.optimizer, torch.optim.Optimizer)
    assert not isinstance(run.optimizer, DPOptimizer)
    seen = []
    run.optimizer.register_step_post_hook(lambda *_: seen.append(run.engine.releases))
    train(run, 2)
    assert len(seen) == 2
    state = run.optimizer.state_dict()
    assert state["anechoic"]["releases"] == 2 and state["anechoic"]["earlier"] == []
    assert state == run.optimizer.original_optimizer.state_dict()
