"""Checkpoints: one file from which a run goes on bit for bit, or not at all.

A file is a line that names the format, the SHA-256 digest of what follows, and a torch archive that is
read with weights_only=True. It holds the keys and past noise, unless it is sealed: whoever reads it can take
the noise off the releases, so it is as secret as the data.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import platform
import re
from codecs import encode
from collections import Counter, OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter
from torch.serialization import safe_globals

from anechoic.errors import CheckpointError, DesynchronizedError, MismatchError, ReplayError
from anechoic.mechanism.mechanism import Mechanism
from anechoic.mechanism.pin_to_saved import pin_to_saved
from anechoic.noise import derive
from anechoic.runs.atomic_files import reading, writing
from anechoic.runs.ledger import check_not_made
from anechoic.statement.software import version_of
from anechoic.torch.generators import as_data, from_data, restore, states
from anechoic.torch.noise_adder import RanksError
from anechoic.torch.optimizer import unstamped
from anechoic.torch.run import PrivateRun, drawn_digest

logger = logging.getLogger("anechoic")
MAGIC = b"anechoic checkpoint 1\n"


def save(run: PrivateRun, path: str | os.PathLike[str], extra: dict[str, Any], *, keys: bool = True) -> None:
    """Write `run` and the user's `extra` to `path`, atomically; of several ranks the first one does.

    With keys=False neither keys nor noise are in the file.
    """
    target = _path(path)
    if target.is_dir() or not target.parent.is_dir():
        raise CheckpointError(f"path={str(path)!r} must be the name of a file, in a folder that exists.")
    if open_ := "optimizer.step() is under way" if run.optimizer.stepping.locked() else run.ledger.unfinished:
        raise DesynchronizedError(f"{open_}: save after optimizer.step(), or optimizer.abandon_batch().")
    if run.ledger.begun:  # until the first batch the user may load weights
        run.optimizer.work.guard.check()
    if not (keys or run.keys.given):
        raise ValueError(
            "keys=False, but this run drew its keys itself, so nobody could give them when it is resumed:"
            " pass noise_key and sampling_key to PrivacyEngine."
        )
    check_readable("checkpoint_dict", extra)
    micro_batch = run.ledger.micro_batch
    if not run.recorder.follows:
        content = _content(run, keys) | {"extra": extra}
        check_readable("checkpoint", content)
        content["journal"] = run.recorder.mark(target.parent, run.ledger.releases, run.keys.noise)
        with writing(target, MAGIC) as file:
            torch.save(content, cast("Any", file))
    run.ledger.fix_micro_batch(micro_batch)


def _content(run: PrivateRun, keys: bool) -> dict[str, Any]:
    noise = run.noise_adder.noise_state.state_dict(copy=False)
    secret: dict[str, Any] = {"noise_key": None, "sampling_key": None, "noise": None}
    if keys:
        secret = {"noise_key": run.keys.noise.hex(), "sampling_key": run.keys.sampling.hex(), "noise": noise}
    return secret | {
        "mechanism": run.mechanism.to_json(),
        "fingerprint": run.mechanism.fingerprint,
        "releases": run.ledger.releases,
        "micro_batch": run.ledger.micro_batch,
        "order": run.loader.feed.batches.name,
        "settings": _settings(run),
        "cipher": run.noise_adder.stream.cipher,
        "noise_memory": run.noise_adder.storage,
        "noise_check": _check_of(run.keys.noise),
        "sampling_check": _check_of(run.keys.sampling),
        "module": run.plain.state_dict(),
        "optimizer": unstamped(run.optimizer.original_optimizer.state_dict()),
        "rng": as_data(states(cuda=True)),
        "environment": environment(run.source.device),
        "sync_every": run.recorder.sync_every,
        "drawn": drawn_digest(
            *(None if keys else noise, run.loader.feed.batches, run.ledger.releases),
            *(run.mechanism, run.keys.noise),
        ),
        "earlier": run.history.saved(),
    }


def load(run: PrivateRun, path: str | os.PathLike[str], *, adopt_journal: bool = False) -> dict[str, Any]:
    """Load the checkpoint at `path` into `run`, which stays as it is on refusal; return the user's extra."""
    planned, source, said = run.mechanism, _path(path), dict[str, Any]()
    try:
        with run.noise_adder.ranks.together("load_checkpoint", said) as words:
            content = _admitted(run, source)
            journal, earlier, resume = _prepared(run, source, content, adopt_journal)
            with source.open("rb") as file:  # its first two lines: the format, and the digest
                said |= {"file": file.readlines(len(MAGIC) + 1)[1], "releases": content["releases"]}
            said["end"] = 0 if journal is None else journal.end
        if any(word["file"] != said["file"] for word in words):
            raise RanksError(
                f"the ranks loaded different checkpoints, of releases {[word['releases'] for word in words]}:"
                " give every rank the same file."
            )
        run.plain.load_state_dict(content["module"])
        run.optimizer.restore(content["optimizer"])
    except BaseException:
        if run.mechanism is not planned:
            run.adopt_mechanism(planned)
        raise
    resume()
    run.recorder.known = words[0]["end"]
    run.recorder.attach(journal)
    run.history.earlier = earlier
    run.optimizer.forget()
    run.optimizer.work.guard.released()
    run.ledger.begun = True
    run.ledger.fix_micro_batch(content["micro_batch"])
    restore(from_data(content["rng"]))
    return dict(content["extra"])


def _admitted(run: PrivateRun, source: Path) -> dict[str, Any]:
    """Read a checkpoint of this run's mechanism, which `run` adopts as it was begun."""
    content = read(source)
    begun, fingerprint = pin_to_saved(run.mechanism, content["mechanism"]), content["fingerprint"]
    if fingerprint != begun.fingerprint:
        here, there = run.mechanism, json.loads(content["mechanism"])
        raise MismatchError(
            f"the checkpoint belongs to a mechanism with fingerprint {fingerprint[:12]}…"
            f" (grid_bits={there.get('grid_bits')}), this run's is {here.fingerprint[:12]}…"
            f" (grid_bits={here.grid_bits}): pass mechanism=anechoic.torch.read_mechanism(path)."
        )
    if begun is not run.mechanism:
        if run.ledger.releases:
            raise _already(run)
        run.adopt_mechanism(begun)
    return content


def _prepared(run: PrivateRun, source: Path, content: Mapping[str, Any], adopt: bool) -> tuple[Any, Any, Any]:
    """Prepare journal, history and run: all that may be refused."""
    own, saved = run.loader.feed.batches.name, content["order"]
    if own != saved:
        own, saved = (re.sub(r"\b([0-9a-f]{12})[0-9a-f]{52}\b", r"\1…", name) for name in (own, saved))
        raise MismatchError(
            f"the checkpoint has batches {saved}, this run {own}: set up the loader as it was, with the same"
            " unit_ids=Units(…), combine and max_examples."
        )
    for name, value in _settings(run).items():
        if content["settings"].get(name) != value:
            raise MismatchError(
                f"{name}={value} was {content['settings'].get(name)} in the checkpoint: set it up as it was."
            )
    (noise_key, sampling_key), releases = _keys(run, content), content["releases"]
    check_not_made(noise_key, releases)
    if run.ledger.releases and run.keys.noise != noise_key:
        raise _already(run)
    _check_states(run, content)
    earlier = run.history.load(content["earlier"])
    how = {"cipher": content["cipher"], "storage": content["noise_memory"]}
    resume = run.resume(noise_key, sampling_key, content["noise"], releases, drawn=content["drawn"], **how)
    journal = None
    if not run.recorder.follows:
        saved = content["journal"]
        journal = run.recorder.resumed(saved, source.parent, noise_key, releases, adopt=adopt)
    repeated = 0 if journal is None else journal.end - releases
    now = environment(run.source.device)
    check_place(content["environment"], now, repeated=repeated, sync_every=content["sync_every"])
    return journal, earlier, resume


def _already(run: PrivateRun) -> ReplayError:
    made = f"this run has made {run.ledger.releases} releases of its own"
    return ReplayError(f"{made}: load a checkpoint before training, with a new engine.")


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the contents of a checkpoint, its digest checked."""
    source = _path(path)
    try:
        with reading(source, MAGIC) as window:
            if window.read(2) != b"PK":  # other formats would be unpickled by other rules
                raise CheckpointError(f"{source} holds no torch archive.")
            window.seek(0)
            with safe_globals(_NUMBERS):
                content = torch.load(cast("Any", window), map_location="cpu", weights_only=True)
    except (RuntimeError, pickle.UnpicklingError, EOFError) as error:
        raise CheckpointError(f"{source} cannot be decoded: {error}") from error
    return cast("dict[str, Any]", content)


def read_mechanism(path: str | os.PathLike[str]) -> Mechanism:
    """Return the mechanism of the run that wrote the checkpoint at `path`, to resume with.

    Raises:
        CheckpointError: if the file is missing, corrupt or truncated.
        MismatchError: if this version of the library computes another guarantee for it.
    """
    return Mechanism.from_json(read(path)["mechanism"])


def _keys(run: PrivateRun, content: Mapping[str, Any]) -> tuple[bytes, bytes]:
    """Return the keys of a checkpoint, or the run's own where it is sealed."""
    if content["noise_key"] is not None:
        return bytes.fromhex(content["noise_key"]), bytes.fromhex(content["sampling_key"])
    for name, key in (("noise", run.keys.noise), ("sampling", run.keys.sampling)):
        if _check_of(key) != content[f"{name}_check"]:
            raise MismatchError(
                f"the checkpoint is sealed, and {name}_key is not the one that it was written under: pass"
                " PrivacyEngine(noise_key=…, sampling_key=…) the keys of that run."
            )
    return run.keys.noise, run.keys.sampling


def _check_of(key: bytes) -> str:
    """Digest that recognises a key without showing it."""
    return derive(key, "checkpoint key check", size=16).hex()


def check_given(run: PrivateRun, module: Any, optimizer: Any, **options: Any) -> None:
    """Refuse a module or an optimizer of another run, and options of Opacus that have no meaning here."""
    own = {"module": (module, run.module, run.plain), "optimizer": (optimizer, run.optimizer)}
    for name, (given, *known) in own.items():
        if given is not None and not any(given is one for one in known):
            raise MismatchError(f"{name} is not the one that this engine's make_private returned.")
    for name, value in options.items():
        if value is not None:
            raise ValueError(f"{name} must be None: put other states into checkpoint_dict.")


def _settings(run: PrivateRun) -> dict[str, Any]:
    share = run.loader.feed.share
    return {
        "PrivacyEngine(chunk_rows)": None if share is None else share.rows,
        "loss_reduction": run.optimizer.loss_reduction,
        "batch_first": run.source.setup.batch_first,
        "grad_sample_mode": run.source.mode,
        "clipping": run.source.clipping.name,
        "optimizer": type(run.optimizer.original_optimizer).__name__,
    }


def _check_states(run: PrivateRun, content: Mapping[str, Any]) -> None:
    """Compare names and shapes before anything is changed."""
    own, saved = run.plain.state_dict(), content["module"]
    for name in own.keys() | saved.keys():
        mine, theirs = (getattr(state.get(name), "shape", None) for state in (own, saved))
        if (name in own) != (name in saved) or mine != theirs:
            raise MismatchError(
                f"module: {name} is {mine} here and {theirs} in the checkpoint: build the model as it was."
            )
    sizes = [len(group["params"]) for group in run.optimizer.param_groups]
    if sizes != [len(group["params"]) for group in content["optimizer"]["param_groups"]]:
        raise MismatchError("the checkpoint has other parameter groups: build the optimizer as it was.")


def _path(path: Any) -> Path:
    if not isinstance(path, (str, os.PathLike)):
        raise ValueError(f"path={type(path).__name__} must be a file name.")
    return Path(path)


#: What weights_only=True reads besides its own: numbers of NumPy, as what they are.
_NUMBERS: list[Any] = [np.float64(0).__reduce__()[0], np.dtype, encode]
_NUMBERS += [type(np.dtype(c)) for c in "?bBhHiIlLqQefdgFDG"]
_READ = (Tensor, Parameter, str, int, float, bool, type(None))


def check_readable(name: str, value: Any) -> None:
    """Refuse what stands at `name` and is none of the types that weights_only=True reads."""
    if type(value) in (dict, OrderedDict, Counter):
        for key, item in value.items():
            check_readable(f"{name} key", key)
            check_readable(f"{name}[{key!r}]", item)
    elif type(value) in (list, tuple, torch.Size):
        for i, item in enumerate(value):
            check_readable(f"{name}[{i}]", item)
    elif not (isinstance(value, np.generic) and value.dtype.kind in "biufc") and type(value) not in _READ:
        raise ValueError(
            f"{name} is a {type(value).__name__}: a checkpoint keeps tensors, numbers, strings, lists, tuples"
            " and dicts, which are read without running code."
        )


def environment(device: torch.device) -> dict[str, Any]:
    """Return all that is known to change the bits of a training step, as strings, numbers and bools."""
    found: dict[str, Any] = {
        "anechoic": version_of("anechoic"),
        "torch": str(torch.__version__),
        "opacus": version_of("opacus"),
        "numpy": np.__version__,
        "python": ".".join(platform.python_version_tuple()[:2]),
        "machine": platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "device": device.type,
        "default_dtype": str(torch.get_default_dtype()),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "mkldnn": torch.backends.mkldnn.enabled,
    }
    if device.type == "cuda":
        found |= {
            "device": f"cuda: {torch.cuda.get_device_name(device)}",
            "cuda": str(torch.version.cuda),
            "cudnn_benchmark": torch.backends.cudnn.benchmark,
            "cudnn_allow_tf32": torch.backends.cudnn.allow_tf32,
        }
    return found


def check_place(saved: dict[str, Any], now: dict[str, Any], *, repeated: int, sync_every: int) -> None:
    """Say what differs from where a checkpoint was written, and refuse what the journal does not protect.

    Releases after the checkpoint are made again under the same rows of noise, so they have to be the same:
    the journal, which knows of `repeated` ones, compares each before it is used. With `sync_every` above 1
    it may lack the last before a power cut. Where there is none, or bits agree, a run goes on anywhere.
    """
    differ = [name for name in sorted(saved.keys() | now.keys()) if saved.get(name) != now.get(name)]
    what = "; ".join(f"{name}={now.get(name)} was {saved.get(name)}" for name in differ)
    if str(saved.get("device", "")).startswith("cuda") and not saved.get("deterministic_algorithms"):
        what = what or "kernels of a CUDA device round differently without deterministic_algorithms"
    if not what:
        return
    remedy = "resume with what was, or call torch.use_deterministic_algorithms(True) before the next run"
    why = ""
    if "anechoic" in differ:
        why = "another version may draw other noise and other batches under the same key"
    elif sync_every > 1:
        why = f"releases may round differently, and journal_sync_every={sync_every} may have lost some"
    if why:
        raise ReplayError(
            f"{what}: {why}. So {remedy}; or start a new run, and PrivacyEngine.charge this one's releases."
        )
    logger.log(
        logging.WARNING if repeated else logging.INFO,
        "%s when the checkpoint was written: releases may round differently. %d are made again, and refused"
        " where they differ from the journal in a bit. If that happens: %s.",
        *(what, repeated, remedy),
    )
