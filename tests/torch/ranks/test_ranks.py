"""A run on several ranks: the release is the same, bit for bit, on every number, or no rank has it."""

import os
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler, Subset, TensorDataset

from anechoic.budget import BudgetBook
from anechoic.errors import AnechoicError, DesynchronizedError, MismatchError, UnsupportedError
from anechoic.mechanism.mechanism import Mechanism
from anechoic.participation import MinSep
from anechoic.sampling import External
from anechoic.strategies import BLT, BandedInverse, Identity
from anechoic.torch import BatchMemoryManager, PrivacyEngine, RecordStream
from tests.floats import same_bits
from tests.marks import mostly_slow
from tests.torch.ranks.processes import Died, on_ranks, results
from tests.torch.ranks.setting import ROWS, STEPS, begun, digests, exact, train
from tests.torch.setting import data, network
from tests.torch.units_setting import SCHEMES, scheme, unit_mechanism

# -- the same bits --------------------------------------------------------------------------------------


def everywhere(tmp_path, cases, *, ranks=(1, 2, 3)):
    """Run `cases`, by name, on each number of ranks; weights and releases of each are compared.

    A case is given a folder for its journal, and returns the weights.
    """
    first = {}
    for count in ranks:
        for name in cases:
            (tmp_path / f"{count} {name}").mkdir()
        every = lambda rank, count=count: {n: run(tmp_path / f"{count} {n}") for n, run in cases.items()}  # noqa: E731
        found = results(count, every)
        for name in cases:
            now = found[0][name], digests(tmp_path / f"{count} {name}")
            assert all(same_bits(now[0], other[name]) for other in found), f"{name}: ranks differ"
            assert len(now[1]) == STEPS
            before = first.setdefault(name, now)
            assert same_bits(before[0], now[0]) and before[1] == now[1], f"{name} on {count} ranks"
    assert len({weights.tobytes() for weights, _ in first.values()}) == len(cases)


def case(mech=None, **options):
    return lambda folder: train(begun(mech, journal=folder, **options))


def sampled(name, units=None):
    """A case under a scheme of sampling, of single examples or of units."""
    sampling = scheme(name, units or 60, STEPS)
    mech = replace(unit_mechanism(sampling, noise_std=0.5, unit="user" if units else "example"), grid_bits=20)
    size = getattr(sampling, "batch_size", None) or round(sampling.expected_batch_size)
    options = {"loader": {"batch_size": int(size), "shuffle": True}}
    if units:  # of which one brings more rows to a step than a chunk has
        options |= {"unit_ids": np.arange(40) % units, "unit": "user", "dataset": data(40), "chunk_rows": 2}
    return case(mech, **options)


def in_micro_batches(folder):
    engine, model, module, optimizer, loader = begun(exact("poisson"), chunk_rows=5, journal=folder)
    with BatchMemoryManager(data_loader=loader, max_physical_batch_size=11, optimizer=optimizer) as parts:
        return train((engine, model, module, optimizer, parts))


def test_one_process_and_several_ranks(tmp_path):
    everywhere(tmp_path, {"poisson": case(exact("poisson"), model=network(dropout=0.3))})


@pytest.mark.slow
def test_whatever_is_sampled_planned_clipped_and_drawn(tmp_path):
    poisson, adam = exact("poisson"), lambda parameters: torch.optim.AdamW(parameters, lr=0.01)
    by_group = {"clipping": "per_group", "max_grad_norm": {"0.*": 0.75, "*": 1.0}}
    cases = {name: sampled(name) for name in SCHEMES}
    cases |= {f"{name}, units": sampled(name, units=12) for name in ("fixed", "poisson", "bins")}
    cases |= {
        "blt": case(replace(exact(), strategy=BLT(STEPS, [0.4, 0.2], [0.9, 0.5]))),
        "made again": case(replace(exact(), strategy=BandedInverse(STEPS, [1.0, -0.5])), memory_budget=1),
        "by group": case(exact("poisson", clip_norm=1.25), **by_group),
        "augmented": case(poisson, dataset=data(60, augmented=True)),
        "adam": case(poisson, optimizer=adam),
        "loss by rows": case(exact("poisson", noise_std=0.7), grad_sample_mode="vmap_loss", chunk_rows=4),
        "micro-batches": in_micro_batches,
    }
    everywhere(tmp_path, cases)


def test_sums_in_floating_point_are_the_same_on_all_ranks():
    def work(rank):
        mech = replace(exact("poisson"), grid_bits=None)
        return train(begun(mech, grad_sample_mode="ghost", chunk_rows=None))

    (alone,), found = results(1, work), results(3, work)
    assert all(same_bits(found[0], other) for other in found)
    assert np.allclose(alone, found[0], rtol=0, atol=1e-5)


@pytest.mark.slow
def test_a_module_inside_of_torchs_own_is_taken_out_of_it():
    def work(rank):
        plain = network(seed=rank)  # whose weights torch brings from rank 0
        wrapped = DistributedDataParallel(plain) if torch.distributed.is_initialized() else plain
        engine, _, *rest = begun(model=wrapped)
        return train((engine, plain, *rest), 3)

    first, second = results(2, work)
    assert same_bits(first, second) and same_bits(first, results(1, work)[0])


def test_every_rank_has_the_keys_of_rank_0():
    def work(rank):
        run = begun(keys=False)[0]._current()
        return run.keys.noise, run.keys.sampling

    first, second = results(2, work)
    assert first == second and first != results(2, work)[0]


# -- refusals -------------------------------------------------------------------------------------------


def refused(work, *, ranks=2, match, kind=AnechoicError):
    """What all ranks raise."""
    found = on_ranks(ranks, work, timeout=30)
    for error in found:
        assert isinstance(error, kind), "\n".join(getattr(error, "__notes__", [repr(error)]))
    assert any(match in str(error) for error in found), found
    return found


def other_data(rank):
    order = torch.randperm(60, generator=torch.Generator().manual_seed(rank))
    begun(dataset=Subset(TensorDataset(*(t[order] for t in data(60).tensors)), range(60)))


def other_batches(rank):
    mech = replace(Mechanism(Identity(STEPS), External(MinSep(3, 2), 20, STEPS), 0.5), grid_bits=20)
    order = torch.randperm(60, generator=torch.Generator().manual_seed(rank)).split(20)
    begun(mech, loader={"batch_sampler": [part.tolist() for part in order]}, dataset=data(60))


def other_keys(rank):
    engine = PrivacyEngine(noise_key=bytes([rank]) * 32, sampling_key=bytes([9]) * 32)
    engine.make_private(
        module=(model := network()),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=torch.utils.data.DataLoader(data(60), batch_size=20, shuffle=True),
        mechanism=exact(),
    )


def divided_data(rank):
    begun(dataset=(dataset := data(60)), loader={"batch_size": 20, "sampler": DistributedSampler(dataset)})


def records_that_come_once(rank):
    given = {"batch_size": 20, "steps": STEPS, "participation": MinSep(3), "owner": None}
    begun(dataset=RecordStream(data(60), **given), loader={"batch_size": 20})


def other_threads(rank):
    torch.set_num_threads(1 + rank)
    begun()


AT_THE_BEGINNING = {
    "weights": (lambda rank: begun(model=network(seed=rank)), MismatchError, "torch.manual_seed(0) before"),
    "mechanism": (lambda rank: begun(exact(noise_std=0.5 + rank * 1e-9)), MismatchError, "mechanism is"),
    "data": (other_data, MismatchError, "Give every rank the whole data set"),
    "length": (lambda rank: begun(exact(examples=60 + rank)), MismatchError, "data length is 61, not 60"),
    "reduction": (
        lambda rank: begun(loss_reduction=("mean", "sum")[rank]),
        MismatchError,
        "loss_reduction is",
    ),
    "rates": (
        lambda rank: begun(optimizer=lambda p: torch.optim.SGD(p, lr=0.1 + rank)),
        MismatchError,
        "optimizer group 0 is",
    ),
    "threads": (other_threads, MismatchError, "software threads is 2, not 1"),
    "chunks": (lambda rank: begun(chunk_rows=ROWS + rank), MismatchError, "chunk_rows is 9, not 8"),
    "keys": (other_keys, MismatchError, "key noise_key is"),
    "batches": (other_batches, DesynchronizedError, "differ from rank to rank"),
    "sampler": (divided_data, UnsupportedError, "has a DistributedSampler"),
    "stream": (records_that_come_once, UnsupportedError, "each rank would read by itself"),
    "sharded": (
        lambda rank: begun(model=fully_shard(network())),
        UnsupportedError,
        "FSDPModule: pass the plain module",
    ),
    "one rank": (
        lambda rank: begun(max_grad_norm=-1.0 if rank else 1.0),
        Exception,
        "rank 1 failed at make_p",
    ),
}


@pytest.mark.parametrize("name", mostly_slow(AT_THE_BEGINNING, quick=("weights", "batches", "sharded")))
def test_ranks_that_would_begin_different_runs_are_refused(name):
    work, kind, match = AT_THE_BEGINNING[name]
    refused(work, match=match, kind=kind)


def skip_a_batch(run):
    iterator = iter(run[4])
    for _ in range(2):
        next(iterator)


def step_twice(run):
    run[3].step()


def change_a_weight(run):
    with torch.no_grad():
        run[1][0].weight[0, 0] += 1


def raise_the_rate(run):
    run[3].param_groups[0]["lr"] *= 2


def stop(run):
    os.kill(os.getpid(), signal.SIGKILL)


def fill_the_disk(run):
    def fail(*_):
        raise OSError("the disk is full")

    run[0]._current().noise_adder.journal.record = fail


IN_THE_MIDST = {  # what one rank does after two releases, which one, after how many more all stop, and why
    "skips": (skip_a_batch, 1, 0, "another rank is gone"),
    "steps twice": (step_twice, 1, 0, "no batch was delivered for release 2"),
    "other weights": (change_a_weight, 1, 0, "trainable parameter was changed"),
    "other rate": (raise_the_rate, 1, 1, "the weights of rank 1 are not those of rank 0 at release 3"),
    "killed": (stop, 1, 0, "another rank is gone"),
    "journal": (fill_the_disk, 0, 0, "the disk is full"),
}


@pytest.mark.parametrize("name", mostly_slow(IN_THE_MIDST, quick=("other rate", "journal")))
def test_what_happens_to_one_rank_stops_all_before_the_release(name, tmp_path):
    happens, victim, more, match = IN_THE_MIDST[name]

    def work(rank):
        run = begun(journal=tmp_path)
        before = train(run, 2)
        try:
            if rank == victim:
                happens(run)
            train(run)
        except Exception as error:
            error.same = same_bits(before, train(run, 0)) or more > 0 or happens is change_a_weight
            raise

    found = on_ranks(3 if name == "killed" else 2, work, timeout=20)
    told = [error for error in found if not isinstance(error, Died)]
    assert len(told) == len(found) - (name == "killed")
    assert all(isinstance(error, (AnechoicError, OSError)) and error.same for error in told), found
    outside = ("skips", "other weights", "other setting")  # of step(): told nobody
    alike = any if name in outside else all
    assert alike(match in str(error) for error in told), found
    assert len(digests(tmp_path)) == 2 + more


@pytest.mark.slow
def test_weights_that_were_loaded_on_one_rank_are_refused():
    def work(rank):
        run = begun()
        if rank:
            run[1].load_state_dict(network(seed=4).state_dict())
        train(run, 1)

    refused(work, match="the weights of rank 1 are not those of rank 0 at release 0")


def test_ranks_book_one_run_and_a_second_one_is_refused_on_all(tmp_path):
    book = BudgetBook(tmp_path / "b.db", "flights")
    book.grant(exact().epsilon(1e-6), 1e-6)

    def work(rank):
        run = begun(keys=False)
        run[0]._current().book = book
        train(run, 2)
        return run[0].releases

    assert results(2, work) == [2, 2]
    assert [one.status for one in book.account().live] == ["spent"]
    found = refused(work, match="does not cover", kind=Exception)
    assert "rank 0 failed at the budget book" in str(found[1])
    assert len(book.account().live) == 1


def test_what_was_not_run_is_said_once(caplog):
    from anechoic.torch.setup.checks import check_ranks

    class Asked:
        module, data_loader = network().to("meta"), None

    check_ranks(Asked, "nccl")
    assert caplog.text.count("were tested with 'gloo' on CPUs alone") == 1
    check_ranks(type("Asked", (), {"module": network(), "data_loader": None}), "gloo")
    assert caplog.text.count("tested") == 1
