"""What goes wrong with a model that is cut up is refused on all ranks; its checkpoints are plain ones."""

import os
import signal
import warnings
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.pipelining import SplitPoint, pipeline
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module

from anechoic.errors import DesynchronizedError, GuaranteeError, MismatchError, UnsupportedError
from anechoic.torch.ranks.shards import Shards
from tests.floats import same_bits
from tests.torch.ranks.cut_setting import Blocky, adam, cut, sgd, trained_weights, with_memory
from tests.torch.ranks.processes import Died, on_ranks, results
from tests.torch.ranks.setting import STEPS, begun, digests, train
from tests.torch.setting import data
from tests.torch.units_setting import scheme, unit_mechanism

pytestmark = pytest.mark.slow


def refused(work, *, match, kind=Exception, ranks=2):
    """What all ranks raise, and nobody hangs."""
    found = on_ranks(ranks, work, timeout=20)
    for error in found:
        assert isinstance(error, kind), "\n".join(getattr(error, "__notes__", [repr(error)]))
    assert any(match in str(error) for error in found), found
    return found


# -- how it may be cut --------------------------------------------------------------------------------


def hybrid(rank):
    begun(model=cut(Blocky(), mesh=init_device_mesh("cpu", (2, 1), mesh_dim_names=("a", "b"))), optimizer=sgd)


def by_tensors(rank):
    model = Blocky(every=True)
    parallelize_module(model.blocks[0], init_device_mesh("cpu", (2,)), {"0": ColwiseParallel()})
    begun(model=model, optimizer=sgd)


def both(rank):
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("rows", "tensors"))
    model = Blocky(every=True)
    parallelize_module(model.blocks[0], mesh["tensors"], {"0": ColwiseParallel()})
    fully_shard(model.blocks[0], mesh=mesh["rows"])
    begun(model=model, optimizer=sgd)


def flattened(rank):
    model = FullyShardedDataParallel(Blocky(every=True), device_id=torch.device("cpu"), use_orig_params=True)
    begun(model=model, optimizer=sgd)


def by_stages(rank):
    plain = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 2))
    with warnings.catch_warnings():  # of torch's own
        warnings.simplefilter("ignore")
        model = pipeline(plain, (torch.ones(1, 6),), split_spec={"1": SplitPoint.BEGINNING})
    begun(model=model, optimizer=sgd)


def other_order(rank):
    begun(model=cut(Blocky(), mesh=DeviceMesh("cpu", [1, 0])), optimizer=sgd)


def in_16_bits(rank):
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    begun(model=cut(Blocky(), mp_policy=policy), optimizer=sgd)


def ghost(rank):
    begun(
        model=cut(Blocky(every=True), trained=True), optimizer=sgd, grad_sample_mode="ghost", chunk_rows=None
    )


def mixed(rank):
    model = cut(Blocky(every=True), trained=True)
    model.extra = nn.Parameter(torch.zeros(2))
    begun(model=model, optimizer=lambda ps: torch.optim.SGD(ps, lr=0.1, foreach=True))


def shared(rank):
    begun(model=cut(Blocky(every=True), trained=True), optimizer=sgd, share_optimizer=True)


@pytest.mark.parametrize(
    ("work", "match"),
    [
        (shared, "Leave share_optimizer out"),
        (hybrid, "hybrid sharding (HSDP)"),
        (by_tensors, "blocks.0.0.weight lies as (Shard(dim=0),)"),
        (by_tensors, "tensor parallelism, where a rank has a part of every row"),
        (both, "parallelism"),
        (flattened, "module is FullyShardedDataParallel, which flattens its parameters"),
        (by_stages, "module is a pipeline"),
        (other_order, "of the ranks [1, 0]"),
        (in_16_bits, "leave mp_policy out"),
        (ghost, "grad_sample_mode='ghost'"),
        (mixed, "foreach"),
    ],
)
def test_what_is_cut_otherwise_is_refused_by_name(work, match):
    refused(work, match=match, kind=UnsupportedError)


def test_units_that_make_local_steps_are_refused():
    def work(rank):
        run = begun(
            replace(unit_mechanism(scheme("poisson", 30, STEPS), noise_std=0.5), grid_bits=20),
            model=cut(Blocky(every=True), trained=True),
            optimizer=sgd,
            dataset=data(60),
            unit_ids=[i // 2 for i in range(60)],
            unit="user",
        )
        run[0].pseudo_gradients(nn.CrossEntropyLoss(), local_steps=2, learning_rate=0.1)

    refused(work, match="local steps", kind=UnsupportedError)


# -- ranks that differ --------------------------------------------------------------------------------


def other_blocks(rank):
    model, mesh = Blocky(), init_device_mesh("cpu", (2,))
    kept = {p for p in model.parameters() if p.requires_grad}
    for part in (*model.blocks[rank:], model):
        fully_shard(part, mesh=mesh, ignored_params=kept)
    begun(model=model, optimizer=sgd)


def other_axis(rank):
    model = Blocky(every=True, wide=6)
    how = {"shard_placement_fn": (lambda p: Shard(1) if p.dim() > 1 else None)} if rank else {}
    begun(model=cut(model, trained=True, **how), optimizer=sgd)


def plain_on_one(rank):
    model, mesh = Blocky(), init_device_mesh("cpu", (2,))
    begun(model=cut(model, mesh=mesh) if rank else model, optimizer=sgd)


@pytest.mark.parametrize("work", [other_blocks, other_axis, plain_on_one])
def test_a_rank_whose_model_is_cut_otherwise_is_refused(work):
    found = refused(work, match="rank 1 would begin another run than rank 0", kind=MismatchError)
    assert "model" in str(found[0]) or "weight" in str(found[0])


def test_a_part_that_is_changed_on_one_rank_is_refused(tmp_path):
    for trained in (False, True):
        (tmp_path / str(trained)).mkdir()

        def work(rank, trained=trained):
            model = cut(Blocky(every=trained), trained=trained)
            run = begun(model=model, optimizer=sgd, journal=tmp_path / str(trained))
            train(run, 1, weights=trained_weights)
            if rank:
                with torch.no_grad():
                    model.blocks[0][0].weight._local_tensor[0, 0] += 1
            train(run, 3, weights=trained_weights)

        refused(work, match="changed", kind=GuaranteeError)
        assert len(digests(tmp_path / str(trained))) == 1


# -- ranks that are missing ---------------------------------------------------------------------------


def test_a_rank_that_skips_a_batch_stops_all(tmp_path):
    def work(rank):
        model = cut(Blocky(every=True), trained=True)
        _, _, module, optimizer, loader = begun(model=model, optimizer=sgd, journal=tmp_path)
        for number, (x, y) in enumerate(loader):
            if rank == 1 and number == 2:
                continue
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(x), y).backward()
            optimizer.step()

    refused(work, match="is gone, or did not answer", kind=DesynchronizedError)
    assert len(digests(tmp_path)) == 2


@pytest.mark.parametrize("at", ["forward", "backward"])
def test_a_rank_that_dies_while_others_wait_for_its_weights_stops_all(tmp_path, at):
    def work(rank):
        run = begun(model=cut(Blocky(every=True), trained=True), optimizer=sgd, journal=tmp_path)
        train(run, 1, weights=trained_weights)
        if rank == 1:
            name = {"forward": "_give", "backward": "_reached"}[at]
            before, left = getattr(Shards, name), [3]

            def last(*given):
                left[0] -= 1
                if not left[0]:
                    os.kill(os.getpid(), signal.SIGKILL)
                return before(*given)

            setattr(Shards, name, last)
            if name == "_give":
                run[0]._current().release.ranks.serve = lambda n: last(
                    run[0]._current().source.setup.shards, n
                )
        train(run, weights=trained_weights)

    found = on_ranks(3, work, timeout=30)
    assert isinstance(found[1], Died)
    assert all(isinstance(found[rank], DesynchronizedError) for rank in (0, 2)), found
    assert len(digests(tmp_path)) == 1


def test_an_error_in_the_model_of_one_rank_stops_all(tmp_path):
    def work(rank):
        model = cut(Blocky(), trained=False)
        run = begun(model=model, optimizer=sgd, journal=tmp_path)
        train(run, 1, weights=trained_weights)
        if rank == 1:
            model.blocks[1][0].register_forward_pre_hook(_failing)
        train(run, weights=trained_weights)

    found = on_ranks(2, work, timeout=20)
    assert isinstance(found[0], DesynchronizedError) and isinstance(found[1], ZeroDivisionError), found
    assert len(digests(tmp_path)) == 1


def _failing(*_):
    raise ZeroDivisionError("in the model")


# -- checkpoints --------------------------------------------------------------------------------------

AT = 3


def model_on(kind):
    """A model whose trained weights are parts of ranks, or whole."""
    return cut(Blocky(every=True), trained=True) if kind == "cut" else Blocky(every=True)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((2, "cut"), (3, "cut")),
        ((2, "cut"), (1, "plain")),
        ((1, "plain"), (2, "cut")),
        ((2, "cut"), (2, "plain")),
    ],
)
def test_a_checkpoint_is_that_of_one_process(tmp_path, before, after):
    def saving(rank):
        run = begun(with_memory(), model=model_on(before[1]), optimizer=adam)
        train(run, AT, weights=trained_weights)
        run[0].save_checkpoint(path=tmp_path / "run.ckpt")
        return train(run, weights=trained_weights)

    def resuming(rank):
        model = model_on(after[1])
        run = begun(with_memory(), model=model, optimizer=adam, keys=False)
        run[0].load_checkpoint(path=tmp_path / "run.ckpt")
        assert run[0].releases == AT
        parts = [p for p in model.parameters() if isinstance(p, DTensor)]
        assert bool(parts) == (after == (3, "cut") or after == (2, "cut"))
        return train(run, weights=trained_weights)

    found = results(before[0], saving)
    whole = digests(tmp_path)
    again = results(after[0], resuming)
    assert all(same_bits(found[0], weights) for weights in again)
    assert digests(tmp_path) == whole and len(whole) == STEPS - AT


def test_a_checkpoint_after_an_evaluation_that_left_weights_whole(tmp_path):
    """torch's own hooks leave those of the outermost module so: what is loaded must reach the parts."""

    def looked(model):
        model.eval()
        with torch.no_grad():
            model(torch.ones(1, 6))
        model.train()

    def saving(rank):
        model = cut(Blocky(every=True), trained=True)
        run = begun(model=model, optimizer=adam)
        train(run, AT, weights=trained_weights)
        looked(model)
        run[0].save_checkpoint(path=tmp_path / "run.ckpt")
        return train(run, weights=trained_weights)

    def resuming(rank):
        model = cut(Blocky(every=True), trained=True)
        run = begun(model=model, optimizer=adam, keys=False)
        looked(model)
        run[0].load_checkpoint(path=tmp_path / "run.ckpt")
        return train(run, weights=trained_weights)

    found, again = results(2, saving), results(2, resuming)
    assert same_bits(found[0], again[0]) and same_bits(found[1], again[1])
