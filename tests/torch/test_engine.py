"""make_private: what it returns, what it plans, and everything that it refuses."""

import logging
import re
import subprocess
import sys
from inspect import signature
from pathlib import Path

import pytest
import torch
from opacus.validators.errors import UnsupportedModuleError
from torch import nn
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

import anechoic as an
import anechoic.torch
from anechoic.errors import GuaranteeError, MismatchError, UnsupportedError
from anechoic.mechanism.mechanism import Mechanism
from anechoic.participation import Single
from anechoic.planning.objective import PlanObjective
from anechoic.sampling import External
from anechoic.statement.rounding import round_up
from anechoic.strategies import BandedToeplitz
from anechoic.torch import PrivacyEngine
from anechoic.torch.setup.arguments import ByEpsilon, ByNoise, Setup
from anechoic.workloads import momentum
from tests.torch.setting import data, mechanism, network, private, start, step, train

EPSILON = {"to_epsilon": True, "target_epsilon": 4.0, "target_delta": 1e-5, "epochs": 3, "max_grad_norm": 1.0}


# What it makes.


@pytest.mark.parametrize("name", ["identity", "banded_toeplitz", "blt", "auto"])
def test_a_strategy_can_be_named(name):
    engine = PrivacyEngine()
    private(engine, mechanism=name, poisson_sampling=False, **EPSILON)
    named = {"identity": "Identity", "banded_toeplitz": "Banded", "blt": "BLT", "auto": ""}[name]
    assert named in repr(engine.mechanism.strategy)


def test_a_workload_can_be_given():
    def made(**options):
        engine = PrivacyEngine()
        private(engine, mechanism="banded_toeplitz", poisson_sampling=False, **options, **EPSILON)
        return engine

    plain, heavy = made(), made(workload=lambda n: momentum(n, 0.9))
    assert heavy.mechanism.strategy != plain.mechanism.strategy
    assert PlanObjective.of(momentum(15, 0.9), "last").measure(heavy.mechanism.strategy) == pytest.approx(
        heavy.plan.chosen.rms_error
    )


@pytest.mark.parametrize(
    ("method", "options"),
    [(PrivacyEngine.make_private, ByNoise), (PrivacyEngine.make_private_with_epsilon, ByEpsilon)],
)
def test_type_checkers_and_help_know_every_argument(method, options):
    known = {*signature(method).parameters} - {"self"}
    typed = options.__required_keys__ | options.__optional_keys__
    assert typed | {"grad_sample_mode", "wrap_model"} == known
    entries = re.findall(r"^    (\w+) \((.*?)\): \S", method.__doc__.split("Raises:")[0], re.MULTILINE)
    assert {name for name, _ in entries} == known and len(entries) == len(known)
    given = dict(entries)
    assert given["epochs"] == "int | None, default None" and given["module"] == "nn.Module"
    assert given["keep"] == "Kept | float, default 'last'"
    assert signature(method).parameters["epochs"].annotation == "int | None"
    assert "Returns:" in method.__doc__ and "Raises:" in method.__doc__ and "ARGUMENTS" not in method.__doc__


def in_a_process(code):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_each_name_is_imported_when_it_is_asked_for():
    """And a plan knows torch's optimizers and schedulers before the engine is imported."""
    count = "sum(name.split('.')[0] == 'anechoic' for name in sys.modules)"
    printed = in_a_process(f"""
import sys, anechoic.torch
print({count})
import torch
from anechoic.planning.update import rates_of, update_of
sgd = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1, momentum=0.9)
print(update_of(sgd).momentum, rates_of(torch.optim.lr_scheduler.StepLR(sgd, 1))(2).round(3).tolist())
try:
    update_of(torch.nn.Linear)
except ValueError as error:
    print(str(error).splitlines()[0])
anechoic.torch.PrivacyEngine
rooms = ("audit", "optimize", "lower_bounds")
print({count}, [room for room in rooms if f"anechoic.{{room}}" in sys.modules])
""")
    alone, read, refused, engine = printed.splitlines()
    assert read == "0.9 [0.1, 0.01]" and refused.startswith("optimizer=") and "torch optimizer" in refused
    assert int(alone) <= 10 and int(engine.split()[0]) <= 260 and engine.endswith("[]")
    with pytest.raises(AttributeError, match="no attribute 'Engine'"):
        anechoic.torch.Engine
    assert dir(anechoic.torch) == sorted(anechoic.torch.__all__)


@pytest.mark.slow
def test_a_noise_multiplier_can_be_given():
    engine = PrivacyEngine()
    private(
        engine, noise_multiplier=1.5, max_grad_norm=0.7, epochs=2, mechanism="identity", target_delta=1e-5
    )
    assert engine.mechanism.noise_multiplier == pytest.approx(1.5)
    assert engine.mechanism.clip_norm == 0.7
    assert engine.mechanism.delta == 1e-5
    engine = PrivacyEngine()
    private(engine, noise_multiplier=1.5, max_grad_norm=0.7, steps=7, poisson_sampling=False)
    assert engine.mechanism.steps == 7
    assert engine.mechanism.delta == pytest.approx(1 / 4000)


@pytest.mark.slow
def test_without_epochs_noise_is_independent_and_a_run_may_stop_anywhere(caplog):
    engine = PrivacyEngine()
    made = private(engine, noise_multiplier=1.1, max_grad_norm=1.0)
    assert "may stop after any step" in caplog.text
    run = start(mech=mechanism("poisson", steps=10, noise_std=1.1))
    assert engine.mechanism.noise_multiplier == pytest.approx(1.1)
    for t, (x, y) in enumerate((batch for _ in range(2) for batch in made[-1]), 1):
        made[1].zero_grad()
        nn.functional.cross_entropy(made[0](x), y).backward()
        made[1].step()
        assert len(engine.accountant) == t
        assert engine.accountant.get_epsilon(1e-5) == pytest.approx(run.mechanism.epsilon(1e-5, steps=t))
    assert engine.releases == 10


def run_the_page_s_lines(name):
    page = (Path(__file__).resolve().parents[2] / "docs" / name).read_text(encoding="utf-8")
    found = {}
    for block in page.split("```python\n")[1:]:
        exec(block.split("```")[0], found)
    return found


@pytest.mark.slow
def test_the_page_s_lines_choose_a_rate_inside_the_guarantee(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    found = run_the_page_s_lines("selecting.md")
    selection, chosen = found["selection"], found["chosen"]
    assert 7.9 < selection.epsilon() <= 8.0 and selection.mechanism.epsilon() < 8.0
    assert "best run, setting and score" in capsys.readouterr().out
    again = selection.run(None, [0.1, 0.3, 1.0, 3.0], state="selection.state")  # nothing is trained
    assert again == chosen and set(chosen.result) == {"weight", "bias"}
    same = found["train"](chosen.candidate, selection.mechanism, b"k" * 32)
    assert same == found["train"](chosen.candidate, selection.mechanism, b"k" * 32)


@pytest.mark.slow
def test_the_page_s_lines_save_the_plain_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = run_the_page_s_lines("training.md")
    assert found["engine"].releases == 40 and (tmp_path / "network.pt").exists()
    assert found["engine"].mechanism.sampling.examples == 1000


def test_accountants_of_opacus_are_named_without_effect(caplog):
    engine = PrivacyEngine(accountant="rdp")
    assert "accountant='rdp' changes nothing" in caplog.text
    assert len(engine.accountant) == 0
    assert not engine.accountant.get_epsilon(1e-5)


def test_arguments_without_a_name_or_too_few_are_refused():
    with pytest.raises(TypeError, match=r"keywords only.*make_private\(module=model, optimizer=optimizer"):
        PrivacyEngine().make_private(network(), None, None)
    with pytest.raises(TypeError, match="with_epsilon: missing a required argument: 'target_epsilon'"):
        private(to_epsilon=True)


@pytest.mark.parametrize("length", [93, 1])
def test_epochs_become_an_integer_number_of_steps(length):
    # int(1 / (1 / 93)) is 92
    engine = PrivacyEngine()
    loader = DataLoader(data(length * 2), batch_size=2)
    private(engine, loader=loader, noise_multiplier=1.0, max_grad_norm=1.0, epochs=3, mechanism="identity")
    assert engine.mechanism.steps == 3 * length
    assert engine.mechanism.expected_batch_size == 2


@pytest.mark.slow
def test_a_sequential_sampler_keeps_its_order_and_a_random_one_becomes_one_permutation():
    class Index(TensorDataset):
        pass

    dataset = Index(*data(40).tensors, torch.arange(40))
    orders = []
    for shuffle in (False, True):
        run = start(dataset=dataset, shuffle=shuffle)
        seen = []
        for _ in range(2):
            for x, y, index in run.loader:
                seen.append(index)
                step(run, (x, y))
        assert torch.equal(torch.cat(seen[:5]), torch.cat(seen[5:]))
        orders.append(torch.cat(seen[:5]).tolist())
    assert orders[0] == list(range(40))
    assert orders[1] != orders[0]
    assert sorted(orders[1]) == orders[0]


def test_memory_and_keys_are_said(caplog):
    mech = mechanism(bands=4)
    with caplog.at_level(logging.INFO, logger="anechoic"):
        engine = PrivacyEngine(noise_key=bytes(32))
        private(engine, mechanism=mech, poisson_sampling=False)
    entries = sum(p.numel() for p in network().parameters())
    assert engine._current().noise_adder.stream.memory_bytes == 4 * 4 * entries
    assert f"its state takes {16 * entries / 1e6:.3g} MB, 16 bytes for each parameter" in caplog.text
    assert "memory_budget=" in caplog.text and "at least 1/N" not in caplog.text
    assert "Keys: noise_key given by the caller, who answers for it" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.INFO, logger="anechoic"):
        private(mechanism=mech, poisson_sampling=False)
    assert "Keys: from the operating system." in caplog.text


def test_planning_and_a_delta_that_promises_nothing_are_said(caplog):
    with caplog.at_level(logging.INFO, logger="anechoic"):
        private(mechanism="identity", poisson_sampling=False, **EPSILON | {"target_delta": 0.03})
    assert "planning a mechanism for 15 steps and 40 examples" in caplog.text
    warned = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    assert [text for text in warned if text.startswith("delta=0.03 is at least 1/N for N=40 examples")]


def test_a_plan_is_its_mechanism_and_an_optimised_strategy_has_no_noise_yet():
    planned = an.plan(
        examples=40, batch_size=8, steps=15, epsilon=4.0, delta=1e-5, random_sampling=False,
        strategy="identity",
    )  # fmt: skip
    engine = PrivacyEngine()
    private(engine, mechanism=planned, poisson_sampling=False)
    assert engine.mechanism == planned.mechanism
    with pytest.raises(ValueError, match="has no noise yet: pass anechoic.calibrate"):
        private(mechanism=an.optimize.blt(an.workloads.prefix_sum(15)), poisson_sampling=False)


def test_an_engine_says_what_it_is_and_nothing_secret():
    assert repr(PrivacyEngine()) == "PrivacyEngine(no run yet: call make_private)"
    run = start()
    train(run, 2)
    shown = repr(run.engine)
    assert shown.startswith("PrivacyEngine(grad_sample_mode='rows', Mechanism(BandedToeplitz")
    assert shown.endswith(
        f"2 of 15 releases made, epsilon={round_up(run.engine.get_epsilon(1e-6))} at delta=1e-06)"
    )
    key = bytes(range(32)).hex()
    for shown in (repr(run.engine), repr(run.optimizer), run.mechanism.to_json(), run.mechanism.report()):
        assert key not in shown


def test_opacus_helpers():
    engine = PrivacyEngine()
    bad = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4))
    assert engine.is_compatible(module=network(), optimizer=None, data_loader=None)
    assert not engine.is_compatible(module=bad, optimizer=None, data_loader=None)
    with pytest.raises(UnsupportedModuleError):
        engine.validate(module=bad, optimizer=None, data_loader=None)
    fixed = PrivacyEngine.get_compatible_module(bad)
    assert isinstance(fixed[1], nn.GroupNorm)
    engine.validate(module=fixed, optimizer=None, data_loader=None)


# Batches of somebody else.


def external(promise, steps, batch_size=8, examples=40):
    return Mechanism(BandedToeplitz(steps, [1.0, 0.5]), External(promise, batch_size, steps, examples), 0.5)


def test_external_batches_are_used_as_they_are():
    order = [[5, 1, 7], [0, 2], [3, 4, 6, 8]]
    loader = DataLoader(data(40), batch_sampler=order)
    engine = PrivacyEngine()
    model, optimizer, private_loader = private(engine, loader=loader, mechanism=external(Single(), 3))
    x = data(40).tensors[0]
    for indices, (features, labels) in zip(order, private_loader, strict=True):
        assert torch.equal(features, x[indices])
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(features), labels).backward()
        optimizer.step()
    assert engine.releases == 3


# What it refuses.


DRAWN = mechanism("poisson")


def test_a_second_run_needs_a_second_engine():
    run = start()
    with pytest.raises(GuaranteeError, match="make a new PrivacyEngine"):
        private(run.engine, mechanism=mechanism())


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"max_grad_norm": -1.0}, ValueError, "max_grad_norm=-1.0"),
        ({"noise_generator": torch.Generator()}, UnsupportedError, "noise_generator"),
        ({"rand_on_empty": True}, UnsupportedError, "rand_on_empty"),
        ({"grad_sample_mode": "ghost_fsdp"}, UnsupportedError, "grad_sample_mode='ghost_fsdp'"),
        ({"grad_sample_mode": "magic"}, ValueError, "grad_sample_mode='magic'"),
        ({"loss_reduction": "none"}, ValueError, "loss_reduction='none'"),
        ({"poisson_sampling": "no"}, ValueError, "poisson_sampling='no' must be True or False"),
        ({"sample_rate": 0.1}, TypeError, "no argument 'sample_rate'"),
        ({"mode": "blt"}, TypeError, "no argument 'mode'"),
        ({"mechanism": None}, ValueError, "mechanism=None"),
        ({"epochs": 4}, MismatchError, r"epochs \* len\(data_loader\)=20, the mechanism's is 15"),
        ({"steps": 16}, MismatchError, "steps=16, the mechanism's is 15"),
        ({"max_grad_norm": 0.9}, MismatchError, "max_grad_norm=0.9, the mechanism's is 1.0"),
        ({"noise_multiplier": 3.0}, MismatchError, "noise_multiplier=3.0"),
        ({"adjacency": "replace_one"}, MismatchError, "adjacency='replace_one'"),
        ({"unit": "user"}, MismatchError, "unit='user'"),
        ({"participation": Single()}, MismatchError, "participation"),
        ({"mechanism": mechanism(examples=41)}, MismatchError, "40 examples, the mechanism's sampling 41"),
        ({"mechanism": mechanism(batch_size=10)}, MismatchError, "batch_size=8, the mechanism's is 10"),
        ({"mechanism": DRAWN, "poisson_sampling": False}, MismatchError, "guarantee rests on Poisson"),
    ],
)
def test_options_that_are_refused(options, error, message):
    mech = mechanism()
    engine, model = PrivacyEngine(), network()
    with pytest.raises(error, match=message):
        private(engine, model=model, **{"mechanism": mech, **options})
    said = {"max_grad_norm": 1.0, "noise_multiplier": mech.noise_multiplier, "epochs": 3, "unit": "example"}
    said |= {"adjacency": "zero_out", "participation": mech.participation}
    private(
        engine, model=model, mechanism=mech, **said
    )  # all is as it was; what the mechanism says is repeated


def test_a_mechanism_over_budget_is_refused():
    mech = mechanism(noise_std=0.5)
    options = {"to_epsilon": True, "target_delta": 1e-5, "mechanism": mech}
    with pytest.raises(MismatchError, match="target_epsilon"):
        private(target_epsilon=0.999 * mech.epsilon(1e-5), **options)
    private(target_epsilon=mech.epsilon(1e-5), **options)


class DistributedDataParallel(nn.Module):
    """Stands for torch's, which needs a process group to be made."""

    def __init__(self, module):
        super().__init__()
        self.module = module


class OptimizedModule(DistributedDataParallel):
    """Stands for torch.compile's, which takes seconds to make."""


def mixing():
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


MODULES = [
    (lambda: DistributedDataParallel(network()), UnsupportedError, "is DistributedDataParallel: pass the"),
    (lambda: OptimizedModule(network()), UnsupportedError, "put its _orig_mod in its place"),
    (lambda: torch.jit.script(network()), UnsupportedError, "ScriptModule: pass the plain module"),
    (lambda: network().eval(), UnsupportedError, r"call model.train\(\)"),
    (lambda: nn.Sequential(nn.Embedding(9, 6, max_norm=1.0)), UnsupportedError, "leave max_norm out"),
    (lambda: nn.Sequential(nn.Embedding(9, 6, sparse=True)), UnsupportedError, "leave sparse out"),
    (mixing, GuaranteeError, "get_compatible_module"),
]


@pytest.mark.parametrize(("model", "error", "message"), MODULES)
def test_modules_that_do_not_fit_are_refused(model, error, message):
    with pytest.raises(error, match=message):
        private(model=model(), mechanism=mechanism())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_grad_norm": 1.0, "epochs": 1}, "noise_multiplier is missing"),
        ({"noise_multiplier": 1.0, "epochs": 1}, "max_grad_norm is missing"),
        (
            {"noise_multiplier": 1.0, "max_grad_norm": 1.0, "poisson_sampling": False},
            "epochs=None, steps=None: give one of the two.*add epochs=",
        ),
        ({"noise_multiplier": 1.0, "max_grad_norm": 1.0, "mechanism": "blt"}, "add epochs=…"),
        ({"noise_multiplier": 1.0, "max_grad_norm": 1.0, "epochs": 1, "steps": 5}, "epochs=1, steps=5"),
        ({"noise_multiplier": 1.0, "max_grad_norm": 1.0, "epochs": 0}, "epochs=0"),
        ({"noise_multiplier": 0.0, "max_grad_norm": 1.0, "epochs": 1}, "noise_multiplier=0.0"),
        ({"noise_multiplier": 1.0, "max_grad_norm": 1.0, "epochs": 1, "mechanism": "tree"}, "tree"),
        ({**EPSILON, "target_epsilon": 0.0}, "target_epsilon=0.0"),
        ({**EPSILON, "target_epsilon": float("nan")}, "target_epsilon=nan"),
        ({**EPSILON, "target_delta": 0.0}, "target_delta=0.0"),
        ({**EPSILON, "target_delta": 1.0}, "target_delta=1.0"),
        ({**EPSILON, "max_grad_norm": None}, "max_grad_norm is missing"),
        ({**EPSILON, "epochs": None}, "epochs=None, steps=None"),
    ],
)
def test_too_little_to_plan_from(options, message):
    with pytest.raises(ValueError, match=message):
        private(**options)


class Stream(IterableDataset):
    def __iter__(self):
        return iter([])


def test_a_stream_of_examples_has_no_length_to_plan_from():
    setup = Setup.of({"module": None, "optimizer": None, "data_loader": DataLoader(Stream(), batch_size=8)})
    with pytest.raises(UnsupportedError, match=r"IterableDataset.*DataLoader\(list\(dataset\), …\)"):
        setup.period


def refused_loaders():
    dataset = data(40)
    weighted = WeightedRandomSampler([1.0] * 40, 40)
    return {
        "weighted": DataLoader(dataset, batch_size=8, sampler=weighted),
        "subset": DataLoader(dataset, batch_size=8, sampler=SubsetRandomSampler(range(20))),
        "replacement": DataLoader(dataset, batch_size=8, sampler=RandomSampler(dataset, True)),
        "fewer": DataLoader(dataset, batch_size=8, sampler=RandomSampler(dataset, num_samples=8)),
        "batches": DataLoader(dataset, batch_sampler=[[1, 2], [3]]),
        "unbatched": DataLoader(dataset, batch_size=None),
        "iterable": DataLoader(Stream(), batch_size=8),
    }


@pytest.mark.parametrize("name", refused_loaders())
@pytest.mark.parametrize("kind", ["planned", "fixed", "poisson", "cyclic"])
def test_loaders_whose_sampler_does_not_fit_are_refused(name, kind):
    """Who samples already is not sampled again: amplification is for the engine's draws from all the data."""
    loader = refused_loaders()[name]
    options = EPSILON if kind == "planned" else {"mechanism": mechanism(kind)}
    with pytest.raises(UnsupportedError, match=r"Use shuffle|map-style|give it a batch_size"):
        private(loader=loader, **options)


def test_data_that_were_sampled_count_as_all_there_are():
    """20 of 40 examples, drawn at random: a mechanism for 40 would credit that draw besides its own."""
    drawn = torch.utils.data.Subset(data(40), torch.randperm(40)[:20].tolist())
    loader = DataLoader(drawn, batch_size=8, shuffle=True)
    with pytest.raises(MismatchError, match=r"has 20 examples, the mechanism's sampling 40"):
        private(loader=loader, mechanism=mechanism("poisson"))
    private(loader=loader, mechanism=mechanism("poisson", examples=20))


def test_optimizers_that_do_not_fit_are_refused():
    mech = mechanism()
    other = network(seed=1)
    with pytest.raises(
        ValueError, match=r"4 of the optimizer's 4 are none that the module trains.*made anew"
    ):
        private(optimizer=torch.optim.SGD(other.parameters(), lr=0.1), mechanism=mech)
    model = network()
    with pytest.raises(ValueError, match=r"lacks 2 of them \(2.weight.*parameter groups"):
        private(model=model, optimizer=torch.optim.SGD(model[0].parameters(), lr=0.1), mechanism=mech)
    halves = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (model[0], model[2])]
    with pytest.raises(ValueError, match=r"optimizer=list must be .* One optimizer .*parameter groups"):
        private(model=model, optimizer=halves, mechanism=mech)
    with pytest.raises(UnsupportedError, match="LBFGS"):
        private(model=model, optimizer=torch.optim.LBFGS(model.parameters()), mechanism=mech)
    with pytest.raises(UnsupportedError, match="float16"):
        half = network().half()
        private(model=half, optimizer=torch.optim.SGD(half.parameters(), lr=0.1), mechanism=mech)


def test_frozen_layers_stay_out_of_the_noise():
    model = network()
    model[0].requires_grad_(False)
    run = start(model=model)
    frozen = model[0].weight.clone()
    train(run, 3)
    assert torch.equal(model[0].weight, frozen)
    assert run.optimizer.noise_adder.stream.dimension == 12


def test_double_precision_gets_double_noise():
    model = network().double()
    x, y = data(40).tensors
    run = start(model=model, dataset=TensorDataset(x.double(), y))
    train(run, 2)
    assert run.optimizer.noise_adder._row.dtype == torch.float64
    assert model[0].weight.dtype == torch.float64


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"accountant": "tcdp"}, ValueError, "='tcdp' is unknown: choose one of 'prv', 'rdp', 'gdp'"),
        ({"secure_mode": True}, UnsupportedError, "secure_mode=True"),
        ({"noise_key": 7}, ValueError, "noise_key"),
        ({"noise_key": b"short"}, ValueError, "noise_key has 5 bytes"),
        ({"sampling_key": "a" * 32}, ValueError, "sampling_key"),
        ({"noise_key": b"a" * 32, "sampling_key": b"a" * 32}, ValueError, "two different keys"),
    ],
)
def test_engines_that_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        PrivacyEngine(**options)._keys.draw()


def test_questions_before_the_run():
    engine = PrivacyEngine(accountant="prv", secure_mode=False)
    for ask in (lambda: engine.get_epsilon(1e-5), lambda: engine.mechanism, lambda: engine.releases):
        with pytest.raises(ValueError, match="no run yet"):
            ask()
