"""A model that fully_shard has cut up makes the releases of the plain model, bit for bit."""

from dataclasses import replace

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard

from anechoic.sampling import Poisson
from anechoic.torch import BatchMemoryManager
from anechoic.torch.ranks.shards import Shards
from tests.floats import same_bits
from tests.torch.ranks.cut_setting import Blocky, adam, cut, sgd, trained_weights, with_memory
from tests.torch.ranks.processes import results
from tests.torch.ranks.setting import STEPS, begun, digests, exact, train
from tests.torch.setting import data
from tests.torch.units_setting import scheme, unit_mechanism


def case(mech=None, *, model=dict, optimizer=sgd, criterion=None, each=None, shards=None, **options):
    """A run on the ranks there are: of a plain model on one, of one that is cut up on several."""

    def work(folder):
        made = cut(Blocky(**model()), **(shards() if shards and dist.is_initialized() else {}))
        run = begun(mech or exact("poisson"), model=made, optimizer=optimizer, journal=folder, **options)
        return train(run, criterion=criterion, each=each, weights=trained_weights)

    return work


def everywhere(tmp_path, cases, *, ranks=(1, 2, 3)):
    """Runs `cases`, by name, on each number of ranks, and compares weights and digests of releases."""
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
            assert same_bits(before[0], now[0]), f"{name} on {count} ranks: weights"
            assert before[1] == now[1], f"{name} on {count} ranks: releases"
    return first


def test_one_process_and_two_ranks(tmp_path):
    everywhere(tmp_path, {"adapters": case()}, ranks=(1, 2))


@pytest.mark.slow
def test_a_frozen_base_whatever_its_rows_do(tmp_path):
    """Three ranks and batches of 20 in chunks of 8: parts are uneven, and some ranks have none."""
    small = exact("poisson", batch_size=6)
    cases = {
        "adapters": case(),
        "empty": case(small, loader={"batch_size": 6, "shuffle": True}),
        "dropout": case(model=lambda: {"dropout": 0.3}),
        "decides": case(model=lambda: {"way": "decides"}),
        "loops": case(model=lambda: {"way": "loops"}),
        "changes": case(model=lambda: {"way": "changes"}),
        "loss by rows": case(grad_sample_mode="vmap_loss"),
        "cut": case(
            replace(exact("poisson"), sampling=Poisson(60, 20, STEPS).at_most(24)),
            loader={"batch_size": 20, "shuffle": True},
        ),
        "adam": case(optimizer=adam),
        "divided": case(optimizer=adam, share_optimizer=True),
        "augmented": case(dataset=data(60, augmented=True)),
    }
    found = everywhere(tmp_path, cases)
    assert not same_bits(found["adapters"][0], found["dropout"][0])


TRAINED = {"trained": True}


@pytest.mark.slow
def test_trained_parts(tmp_path):
    everything = lambda: {"every": True}  # noqa: E731
    cases = {
        "adapters": case(shards=lambda: TRAINED),
        "everything": case(model=everything, shards=lambda: TRAINED),
        "dropout": case(model=lambda: {"every": True, "dropout": 0.3}, shards=lambda: TRAINED),
        "loops": case(model=lambda: {"every": True, "way": "loops"}, shards=lambda: TRAINED),
        "decides": case(model=lambda: {"every": True, "way": "decides"}, shards=lambda: TRAINED),
        "adam": case(model=everything, optimizer=adam, shards=lambda: TRAINED),
        "loss by rows": case(model=everything, grad_sample_mode="vmap_loss", shards=lambda: TRAINED),
        "memory": case(with_memory(), model=everything, shards=lambda: TRAINED),
        "per layer": case(model=everything, clipping="per_layer", max_grad_norm=None, shards=lambda: TRAINED),
    }
    found = everywhere(tmp_path, cases)
    assert not same_bits(found["adapters"][0], found["dropout"][0])


def in_micro_batches(criterion, **options):
    """A loop that is given each chunk by itself: ranks have different numbers of them."""

    def work(folder):
        model = cut(Blocky(every=True), trained=True)
        run = begun(exact("poisson"), model=model, optimizer=sgd, journal=folder, chunk_rows=5, **options)
        engine, _, module, optimizer, loader = run
        while engine.releases < STEPS:
            with BatchMemoryManager(
                data_loader=loader, max_physical_batch_size=5, optimizer=optimizer
            ) as parts:
                for x, y in parts:
                    optimizer.zero_grad()
                    with torch.autocast("cpu", dtype=torch.bfloat16):
                        outputs = module(x)
                    criterion(outputs.float(), y).backward()
                    optimizer.step()
                    if engine.releases == STEPS:
                        break
        return trained_weights(model)

    return work


@pytest.mark.slow
def test_micro_batches_autocast_and_units(tmp_path):
    shared = replace(unit_mechanism(scheme("poisson", 12, STEPS), noise_std=0.5), grid_bits=20)
    cases = {
        "micro-batches": in_micro_batches(torch.nn.functional.cross_entropy),
        "units": case(
            shared,
            model=lambda: {"every": True},
            shards=lambda: TRAINED,
            unit_ids=[i % 12 for i in range(40)],
            unit="user",
            dataset=data(40),
            chunk_rows=5,
            loader={"batch_size": 4, "shuffle": True},
        ),
    }
    everywhere(tmp_path, cases)


def along_the_second(p):
    return Shard(1) if p.dim() > 1 and p.shape[1] % dist.get_world_size() == 0 else None


def as_one(part, **options):
    """fully_shard of the whole model alone, and of norm and head in one group."""
    if isinstance(part, Blocky):
        fully_shard([part.norm, part.head], **options)
        fully_shard(part, **options)


@pytest.mark.slow
def test_however_it_is_cut(tmp_path):
    everything = lambda: {"every": True}  # noqa: E731
    cases = {
        "axes": case(model=everything, shards=lambda: {**TRAINED, "shard_placement_fn": along_the_second}),
        "groups": case(model=everything, shards=lambda: {**TRAINED, "how": as_one}),
        "kept": case(model=everything, shards=lambda: {**TRAINED, "reshard_after_forward": False}),
        "tied": case(model=lambda: {"every": True, "wide": 6, "tied": True}, shards=lambda: TRAINED),
        "again": case(model=lambda: {"every": True, "way": "again"}, shards=lambda: TRAINED),
        "large": case(model=lambda: {"every": True, "wide": 8001}, shards=lambda: TRAINED),
        "narrow": case(model=lambda: {"every": True, "wide": 1}, shards=lambda: TRAINED),
    }
    everywhere(tmp_path, cases)


@pytest.mark.slow
def test_one_rank_of_fully_shard(tmp_path):
    (tmp_path / "cut").mkdir()
    (tmp_path / "plain").mkdir()

    def work(rank):
        plain = case(model=lambda: {"every": True})(tmp_path / "plain")
        dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
        return plain, case(model=lambda: {"every": True}, shards=lambda: TRAINED)(tmp_path / "cut")

    ((plain, whole),) = results(1, work)
    assert same_bits(plain, whole) and digests(tmp_path / "plain") == digests(tmp_path / "cut")


def bytes_cut(module):
    return sum(4 * p.numel() for p in module.parameters() if isinstance(p, DTensor))


def held_by(run):
    """Bytes of whole tensors that are here."""
    cuts = run[0]._current().source.setup.shards._cuts.values()
    return sum(cut.bytes for cut in {id(cut): cut for cut in cuts}.values() if cut.here)


@pytest.mark.slow
@pytest.mark.parametrize(("trained", "wide"), [(False, 7), (True, 7), (False, 8000)])
def test_a_rank_holds_one_block_at_a_time_and_nothing_between_steps(trained, wide):
    def work(rank):
        model = cut(Blocky(every=trained, wide=wide), trained=trained)
        run = begun(exact("poisson"), model=model, optimizer=sgd)
        between, during = [], []

        def taken(shards, block, before=Shards._take):
            before(shards, block)
            during.append(held_by(run))

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Shards, "_take", taken)
            train(run, each=lambda engine: between.append(held_by(run)), weights=trained_weights)
        assert not run[0]._current().source._rows.loops
        sizes = [bytes_cut(block) for block in model.blocks]
        return max(during), max(sizes), sum(sizes), bytes_cut(model), between

    for most, block, blocks, whole, between in results(2, work):
        assert 0 < most <= block + (whole - blocks) < whole
        assert between == [0] * STEPS


@pytest.mark.slow
def test_each_rank_has_its_part_of_release_noise_and_optimizer():
    def work(rank):
        model = cut(Blocky(every=True), trained=True)
        run = begun(exact(), model=model, optimizer=adam)
        seen = []
        run[3].attach_step_hook(lambda _: seen.append([p.grad for p in model.parameters()]))
        train(run, 2, weights=trained_weights)
        dimension = sum(p.numel() for p in model.parameters())
        own = sum(p._local_tensor.numel() for p in model.parameters())
        state = run[3].original_optimizer.state
        assert all(isinstance(g, DTensor) for gradients in seen for g in gradients)
        assert sum(g._local_tensor.numel() for g in seen[0]) == own < dimension
        assert sum(one["exp_avg"]._local_tensor.numel() for one in state.values()) == own
        return dimension, own, run[0]._current().release._stream.length

    found = results(3, work)
    dimension = found[0][0]
    assert sum(own for _, own, _ in found) == dimension == sum(length for _, _, length in found)


@pytest.mark.slow
def test_evaluation_through_either_module_in_between(tmp_path):
    """torch's own hooks leave the weights of the outermost module whole, and another object in its place."""

    def looking(folder):
        made = cut(Blocky(every=True), trained=True)
        run = begun(exact("poisson"), model=made, optimizer=sgd, journal=folder)
        seen = []

        def look(engine):
            made.eval()
            with torch.no_grad():
                seen.append([float(one(torch.ones(1, 6)).sum()) for one in (made, run[2], made)])
            made.train()

        weights = train(run, each=look, weights=trained_weights)
        return weights, seen

    def only(rank):
        (tmp_path / "looking").mkdir(exist_ok=True)
        return looking(tmp_path / "looking")

    plain = results(1, lambda rank: case(model=lambda: {"every": True})(tmp_path))[0]
    for weights, seen in results(2, only):
        assert same_bits(weights, plain)
        assert all(len(set(values)) == 1 for values in seen) and len(seen) == STEPS
