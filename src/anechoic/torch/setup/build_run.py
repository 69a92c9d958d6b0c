"""Build a run from the arguments of make_private: checks, mechanism, and private objects."""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np
import torch.distributed as dist

from anechoic.batches.base import Batches, batches_of
from anechoic.batches.external import ExternalBatches, ExternalUnits, check_promise
from anechoic.batches.of_units import UnitBatches
from anechoic.errors import MismatchError
from anechoic.mechanism.mechanism import Mechanism
from anechoic.mechanism.weak_delta import odd_epsilon, weak_delta
from anechoic.runs.ledger import ReleaseLedger
from anechoic.torch.checkpoint import environment
from anechoic.torch.generators import StepGenerators, seeded
from anechoic.torch.loading.fetching import BatchPartition, Fetcher, check_repeats, tried, value_of
from anechoic.torch.loading.loader import BatchSource, PrivateDataLoader, RecordStream, StreamBatches
from anechoic.torch.noise_adder import NoiseAdder, Ranks, SumArithmetic, noise_dtype, running_ranks
from anechoic.torch.optimizer import CorrelatedOptimizer, History
from anechoic.torch.optimizer_kinds import tell_noise
from anechoic.torch.run import Key, Keys, PrivateRun, RunJournal
from anechoic.torch.setup import checks, mechanism_fit
from anechoic.torch.setup.arguments import Setup
from anechoic.torch.setup.clip_norms import clipping_of, names_of, places_of
from anechoic.torch.sources.base import source_class
from anechoic.torch.sources.rows import MEMORY
from anechoic.torch.step import TrainingStep
from anechoic.torch.structure import PLAIN

if TYPE_CHECKING:
    from anechoic.planning.result import Plan

logger = logging.getLogger("anechoic")

#: Steps whose expected sizes tell how large batches are as a rule: an open run has a million.
_LOOKED_AT = 1000
#: Rows of a part of a batch: kernels that work entry by entry then see whole vectors, whatever the processor.
CHUNK = 32


def check(setup: Setup) -> None:
    """Refuse what cannot be made private. Changes nothing."""
    checks.check_options(setup)
    if running_ranks() > 1:
        checks.check_ranks(setup, dist.get_backend())
    checks.check_plain(module=setup.module, optimizer=setup.optimizer, data_loader=setup.data_loader)
    checks.check_loader(setup)
    checks.check_units(setup)
    checks.check_module(setup.module)
    checks.check_optimizer(setup.optimizer, setup.module)
    checks.report_optimizer_state(setup.optimizer)
    places_of(setup.clipping, setup.max_grad_norm, names_of(setup.module, setup.parameters))
    owned = setup.units is not None and not setup.units.single_examples
    if not isinstance(setup.data_loader.dataset, RecordStream):
        check_repeats(setup.data_loader, setup.batch_first, owned=owned)  # last: it fetches examples


def mechanism_of(setup: Setup) -> tuple[Mechanism, Plan | None, SumArithmetic]:
    """Return the given mechanism if it fits, or plan one; and the arithmetic of its sums."""
    if isinstance(setup.mechanism, Mechanism):
        if not setup.mechanism.sampling.formed_outside:
            mechanism_fit.is_shuffled(setup.data_loader)  # refuses batches that would have to be replaced
        mechanism_fit.check_fit(setup, setup.mechanism)
        bits = setup.mechanism.grid_bits
        said = f"the given mechanism has grid_bits={bits}, of calibrate(…, grid_bits=…)."
        return setup.mechanism, None, SumArithmetic(bits is not None, said)
    if not isinstance(setup.mechanism, str):
        raise ValueError(
            f"mechanism={setup.mechanism!r} must be a Mechanism, as of anechoic.calibrate(strategy, …),"
            " 'auto', or the name of a strategy."
        )
    from anechoic.torch.setup.planned import planned

    found, arithmetic = planned(setup)
    return found.mechanism, found, arithmetic


def noise_storage(setup: Setup, mechanism: Mechanism, found: Plan | None) -> str:
    """Choose `memory` of `NoiseStream`: as `found` planned it, or as the budget has room."""
    if found is not None:
        return found.chosen.noise_storage
    if setup.budget is None or setup.way != "store":
        return setup.way
    dimension = sum(p.numel() for p in setup.parameters)
    dtype = noise_dtype(setup.parameters) if mechanism.grid_bits is None else None
    stored = mechanism.stream(dimension, key=bytes(32), backend="torch", dtype=dtype)
    if stored.memory_bytes <= setup.budget:
        return "store"
    if mechanism.strategy.recurrence().sources is None:
        raise ValueError(
            f"memory_budget={setup.memory_budget!r}: the given mechanism needs {stored.memory_bytes} bytes"
            f" for rows of noise ({dimension} parameters). Give as many, or leave mechanism= out."
        )
    return "regenerate"


def build_run(
    setup: Setup,
    mechanism: Mechanism,
    arithmetic: SumArithmetic,
    keys: Keys,
    *,
    way: str,
    journal: Any,
    sync_every: int,
    share: BatchPartition | None,
    ranks: Ranks,
) -> tuple[PrivateRun, tuple[Any, ...]]:
    """Wrap module, optimizer and loader; return the run, and what make_private returns.

    `mechanism_of`, `noise_storage`, `share_of` and `RunJournal` say what the arguments are.
    """
    batches_under = _batches(setup, mechanism)
    ledger = ReleaseLedger(mechanism.steps)
    batches = batches_under(keys.sampling)
    feed = BatchSource(batches, keys.sampling, setup.examples, share=share)
    if batches.units is not None:
        secret = mechanism.amplified
        checks.report_units(batches, batches.units, mechanism.unit, setup.data_loader.dataset, secret=secret)
    loader = PrivateDataLoader(setup.data_loader, feed, ledger, batch_first=setup.batch_first)
    names = names_of(setup.module, setup.parameters)
    clipping = clipping_of(setup.clipping, setup.max_grad_norm, names, mechanism)
    rows, chunk = _usual_rows(setup, mechanism), None if share is None else share.rows
    with ExitStack() as undo:  # whatever fails half-way leaves module and optimizer as they were
        of_mode = source_class(setup.grad_sample_mode)
        source = of_mode(setup, clipping, ledger, rows=rows, chunk=chunk)  # attaches itself to the module
        undo.callback(source.detach)
        divisor = 1.0 if setup.loss_reduction == "sum" else mechanism.expected_batch_size
        release = NoiseAdder(mechanism, ledger, source.parameters, divisor, ranks)
        release.storage = way
        feed.label, generators = source.labelled, StepGenerators(feed)
        source.seed = generators.seed
        work = TrainingStep(source, release, setup.optimizer, generators)
        optimizer = CorrelatedOptimizer(work, setup.optimizer)
        undo.callback(optimizer.detach)
        run = PrivateRun(
            mechanism=mechanism,
            arithmetic=arithmetic,
            ledger=ledger,
            plain=setup.module,
            source=source,
            noise_adder=release,
            optimizer=optimizer,
            loader=loader,
            batches_under=batches_under,
            keys=keys,
            recorder=RunJournal(release, path=journal, sync_every=sync_every, follows=ranks.rank > 0),
            history=History(mechanism),
        )
        run.start()
        run.claim()
        tell_noise(setup.optimizer, mechanism, setup.loss_reduction)
        undo.pop_all()
    logger.info(
        "batches: %s; the loader's own sampler is replaced. %r, %s",
        mechanism.sampling.describe(mechanism.unit),
        mechanism,
        arithmetic,
    )
    logger.info(
        "noise: its state takes %.3g MB, %d bytes for each parameter%s; memory_budget= bounds it. Keys: %s.",
        release.stream.memory_bytes / 1e6,
        release.stream.memory_bytes // sum(p.numel() for p in source.parameters),
        ", and rows are made again in each step" if way == "regenerate" else "",
        keys,
    )
    weak = weak_delta(setup.target_delta or mechanism.delta, setup.count, mechanism.unit)
    for doubt in filter(None, (weak, odd_epsilon(setup.target_epsilon))):
        logger.warning("%s.", doubt)
    if source.criterion is None:
        return run, (source.module, optimizer, loader)
    return run, (source.module, optimizer, source.criterion, loader)


def share_of(setup: Setup, chunk_rows: int | None, ranks: Ranks) -> BatchPartition | None:
    """Return the partition of batches, if asked for, or where there are several processes.

    With chunk_rows=None a part has as many rows as fit, at most `CHUNK`, which depends on no number of ranks.
    """
    if chunk_rows is None and ranks.count == 1:
        return None
    row = sum(p.numel() * p.element_size() for p in setup.module.parameters() if p.requires_grad)
    rows = chunk_rows or min(CHUNK, max(1, MEMORY // max(1, row)))
    return BatchPartition(rows, ranks.rank, ranks.count)


def _usual_rows(setup: Setup, mechanism: Mechanism) -> int:
    """Rows that nearly all batches have at most: of random sizes, four deviations more than on average."""
    sizes = map(mechanism.sampling.expected_size, range(min(mechanism.steps, _LOOKED_AT)))
    expected = max(sizes) * setup.examples / max(1, setup.count)
    return max(1, math.ceil(expected + (4 * math.sqrt(expected) if mechanism.amplified else 0)))


def _batches(setup: Setup, mechanism: Mechanism) -> Any:
    """Batches as a function of the sampling key."""
    sampling, loader, units = mechanism.sampling, setup.data_loader, setup.units
    if isinstance(loader.dataset, RecordStream):
        checks.check_stream(setup, mechanism, loader.dataset)
        stream = StreamBatches(loader.dataset)
        return lambda key: stream
    if sampling.formed_outside:
        given = ExternalBatches(loader.batch_sampler, setup.examples)  # type: ignore[arg-type]
        if units is None:
            check_promise(mechanism.participation, given, mechanism.steps, setup.examples)
            return lambda key: given
        found = ExternalUnits(units, given)
        check_promise(mechanism.participation, found, mechanism.steps, units.count, unit=mechanism.unit)
        return lambda key: UnitBatches(units, given, key, given=True)
    shuffled = mechanism_fit.is_shuffled(loader)

    def under(key: bytes) -> Batches:
        inner = batches_of(sampling, key, period=setup.period, shuffled=shuffled)
        return inner if units is None else UnitBatches(units, inner, key, secret=sampling.amplified)

    return under


#: Examples of the data set that are compared.
_EXAMPLES = 64
_REMEDIES = {
    "weight": "Give every rank the same weights: torch.manual_seed(0) before the model is made, or"
    " for p in model.parameters(): torch.distributed.broadcast(p.data, 0).",
    "data": "Give every rank the whole data set, in the same order: each finds its rows of a batch by"
    " itself.",
    "mechanism": "Plan once, and give every rank the same mechanism=.",
    "key": "Give the keys on rank 0 alone, or the same ones on every rank.",
}
_OTHERWISE = "Start every rank with the same script, arguments and software."


def facts_of(setup: Setup, mechanism: Mechanism, keys: Mapping[str, Key], **others: Any) -> dict[str, str]:
    """Return what this rank would begin with, by name; `others` must be the same too."""
    loader, device = setup.data_loader, next(iter(setup.module.parameters())).device
    found: dict[str, Any] = {"mechanism": mechanism.fingerprint}
    found |= {f"software {name}": value for name, value in environment(device).items()}
    plain = {name: value for name, value in vars(setup).items() if type(value) in PLAIN}
    plain |= others | {"max_grad_norm": setup.max_grad_norm}  # several, where there are groups
    plain["unit_ids"] = "none" if setup.units is None else setup.units.digest
    found |= {f"argument {name}": repr(value) for name, value in plain.items()}
    found |= {"optimizer": type(setup.optimizer).__name__, "model": repr(setup.module)}
    for place, group in enumerate(setup.optimizer.param_groups):
        options = {name: value for name, value in group.items() if type(value) in PLAIN}
        found[f"optimizer group {place}"] = f"{len(group['params'])} parameters, {options}"
    for name, tensor in (*setup.module.named_parameters(), *setup.module.named_buffers()):
        found[f"weight {name}"] = f"{_digest(tensor)} {tensor.requires_grad}"  # of type and shape, too
    found["data loader"] = f"{loader.batch_size} {loader.drop_last} {type(loader.sampler).__name__}"
    found["data length"] = setup.examples
    found["data"] = _data(setup)
    for name, key in keys.items():
        found[f"key {name}"] = _digest(key) if isinstance(key, bytes) else "none" if key is None else "made"
    return {name: str(value) for name, value in found.items()}


def check_agreement(every: list[dict[str, str]]) -> None:
    """Compare the facts of all ranks, on every rank; refuse on all of them what differs on one."""
    for rank, other in enumerate(every):
        names = [name for name in every[0] | other if every[0].get(name) != other.get(name)]
        # a rank without keys takes those of rank 0
        names = [name for name in names if not (name.startswith("key ") and other.get(name) == "none")]
        if not names:
            continue
        listed = "; ".join(
            f"{name} is {other.get(name, 'missing'):.60}, not {every[0].get(name, 'missing'):.60}"
            for name in names[:4]
        )
        kinds = dict.fromkeys(_REMEDIES.get(name.split(" ")[0], _OTHERWISE) for name in names)
        raise MismatchError(
            f"rank {rank} would begin another run than rank 0: {listed}. {' '.join(kinds)} Nothing was begun."
        )


def _digest(content: Any) -> str:
    """Digest of the tensors, arrays and plain values in a structure; of other things by their type."""
    found = hashlib.sha256()
    for part in value_of(content):
        found.update(part if isinstance(part, bytes) else f" {part!r} ".encode())
    return found.hexdigest()[:16]


def _data(setup: Setup) -> str:
    """Return a digest of some examples of the data set."""
    loader = setup.data_loader
    chosen = sorted({int(place) for place in np.linspace(0, setup.examples - 1, _EXAMPLES)})
    fetcher = Fetcher(loader.dataset, loader.collate_fn, setup.batch_first)

    def digest() -> str:
        with seeded(bytes(32)):
            return _digest(fetcher.examples(chosen))

    return str(tried(loader, digest))


def unwrapped(module: Any) -> Any:
    """Return the module inside of torch's or Opacus's DistributedDataParallel: the engine adds sums up."""
    wraps = {"DistributedDataParallel", "DifferentiallyPrivateDistributedDataParallel"}
    return module.module if wraps & {cls.__name__ for cls in type(module).__mro__} else module
