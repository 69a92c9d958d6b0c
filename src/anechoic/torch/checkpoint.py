"""Checkpoints: one file from which a run goes on bit for bit, or not at all.

A file is a line that names the format, the SHA-256 digest of what follows, and a torch archive that is
read with weights_only=True. It holds the keys and past noise: whoever reads it can take the noise off the
releases, so it is as secret as the data.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import pickle
import re
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, cast

import torch
from torch import Tensor
from torch.nn import Parameter

from anechoic.errors import CheckpointError, DesynchronizedError, MismatchError, ReplayError
from anechoic.mechanism import Mechanism
from anechoic.torch.ledger import check_not_made
from anechoic.torch.randomness import rng_state, set_rng_state
from anechoic.torch.replay import check_replayable, environment
from anechoic.torch.run import Run

MAGIC = b"anechoic checkpoint 1\n"
_HEADER = len(MAGIC) + 64 + 1
_CHUNK = 2**22
_OF_UNITS = ", of units with digest "


def save(run: Run, path: str | os.PathLike[str], extra: dict[str, Any]) -> None:
    """Write `run` and the user's `extra` to `path`, atomically.

    Raises:
        CheckpointError: if the folder is missing.
        DesynchronizedError: if the run is between two releases.
        ValueError: if `extra` could not be read back safely, or `path` is no file name.
    """
    target = _path(path)
    if not target.parent.is_dir():
        raise CheckpointError(f"folder {target.parent} does not exist: make it, and save again.")
    if run.ledger.unfinished:
        raise DesynchronizedError(
            f"{run.ledger.unfinished}: a checkpoint is written between two steps. Save after"
            " optimizer.step(), or call optimizer.abandon_batch() first."
        )
    chunking = run.ledger.chunking
    content = {
        "mechanism": run.mechanism.to_json(),
        "fingerprint": run.mechanism.fingerprint,
        "releases": run.ledger.releases,
        "chunking": chunking,
        "kind": run.source.contributions.last_kind,
        "order": run.loader.feed.batches.name,
        "settings": _settings(run),
        "noise_key": run.noise_key.hex(),
        "sampling_key": run.sampling_key.hex(),
        "noise": run.release.noise_state.state_dict(copy=False),
        "module": run.plain.state_dict(),
        "optimizer": run.optimizer.original_optimizer.state_dict(),
        "rng": rng_state(),
        "environment": environment(_device(run)),
        "extra": extra,
    }
    check_plain("checkpoint", {**content, "extra": None})
    check_plain("checkpoint_dict", extra)
    with _replacing(target) as file:
        file.write(MAGIC + b"0" * 64 + b"\n")
        hashing = _HashingWriter(file)
        torch.save(content, cast(Any, hashing))
        file.seek(len(MAGIC))
        file.write(hashing.digest.hexdigest().encode())
    run.ledger.fix_chunking(chunking)
    run.source.contributions.expect(run.source.contributions.last_kind)


def load(run: Run, path: str | os.PathLike[str]) -> dict[str, Any]:
    """Put `run` where the checkpoint at `path` was written, and return the user's extra.

    Raises:
        CheckpointError, MismatchError, ReplayError: see `PrivacyEngine.load_checkpoint`; `run` is as before.
    """
    content = read(path)
    fingerprint = content["fingerprint"]
    if fingerprint != run.mechanism.fingerprint:
        raise MismatchError(
            f"the checkpoint belongs to a mechanism with fingerprint {fingerprint[:12]}…, this run's is"
            f" {run.mechanism.fingerprint[:12]}…: pass mechanism=anechoic.torch.read_mechanism(path) to"
            " make_private."
        )
    _check_batches(run.loader.feed.batches.name, content["order"])
    for name, value in _settings(run).items():
        if content["settings"].get(name) != value:
            raise MismatchError(
                f"{name}={value} was {content['settings'].get(name)} when the checkpoint was written: set up"
                " the run as it was."
            )
    check_replayable(content["environment"], environment(_device(run)))
    noise_key, sampling_key = bytes.fromhex(content["noise_key"]), bytes.fromhex(content["sampling_key"])
    check_not_made(noise_key, content["releases"])
    if run.ledger.releases and run.noise_key != noise_key:
        raise ReplayError(
            f"this run has made {run.ledger.releases} releases of its own, and would go on as another one:"
            " load a checkpoint before training, with a new engine."
        )
    _check_states(run, content)
    resume = run.resume(noise_key, sampling_key, content["noise"])
    run.plain.load_state_dict(content["module"])
    run.optimizer.original_optimizer.load_state_dict(content["optimizer"])
    resume()
    run.optimizer.forget()
    run.optimizer.rewatch()
    run.ledger.before_first = None
    run.ledger.fix_chunking(content["chunking"])
    run.source.contributions.expect(content.get("kind", ""))  # not in files of older versions
    set_rng_state(content["rng"])
    return dict(content["extra"])


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Contents of a checkpoint, its digest checked.

    Raises:
        CheckpointError: if it is missing, corrupt, truncated or something else.
    """
    source = _path(path)
    try:
        with source.open("rb") as file:
            head = file.read(_HEADER)
            if not head.startswith(MAGIC):
                raise CheckpointError(f"{source} is not an anechoic checkpoint, or its beginning is damaged.")
            digest = hashlib.sha256()
            while block := file.read(_CHUNK):
                digest.update(block)
            if digest.hexdigest().encode() + b"\n" != head[len(MAGIC) :]:
                raise CheckpointError(
                    f"{source} is corrupt or truncated (its SHA-256 digest differs): resume from an older"
                    " checkpoint."
                )
            window = _Window(file, _HEADER)
            window.seek(0)
            if window.read(2) != b"PK":  # other formats would be unpickled by other rules
                raise CheckpointError(f"{source} holds no torch archive.")
            window.seek(0)
            content = torch.load(cast(Any, window), map_location="cpu", weights_only=True)
    except OSError as error:
        raise CheckpointError(f"{source} cannot be read: {error.strerror or error}.") from error
    except (RuntimeError, pickle.UnpicklingError, EOFError) as error:
        raise CheckpointError(f"{source} cannot be decoded: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{source} holds no checkpoint.")
    return content


def read_mechanism(path: str | os.PathLike[str]) -> Mechanism:
    """The mechanism of the run that wrote the checkpoint at `path`, to resume with.

    Raises:
        CheckpointError: if the file is missing, corrupt or truncated.
        MismatchError: if this version of the library computes another guarantee for it.
    """
    return Mechanism.from_json(read(path)["mechanism"])


def check_same(run: Run, module: Any, optimizer: Any) -> None:
    """Refuse objects of another run.

    Raises:
        MismatchError: if `module` or `optimizer` is given and not the run's.
    """
    if module is not None and module is not run.module and module is not run.plain:
        raise MismatchError("module is not the one that this engine's make_private returned.")
    if optimizer is not None and optimizer is not run.optimizer:
        raise MismatchError("optimizer is not the one that this engine's make_private returned.")


def only_none(**options: Any) -> None:
    """Refuse options of Opacus that have no meaning here.

    Raises:
        ValueError: naming the first that is given.
    """
    for name, value in options.items():
        if value is not None:
            raise ValueError(
                f"{name} is given, but a checkpoint is written and read in one way only, and noise and clip"
                " norm do not change during a run: leave it out, and put other states into checkpoint_dict."
            )


def _settings(run: Run) -> dict[str, Any]:
    return {
        "loss_reduction": run.optimizer.loss_reduction,
        "batch_first": run.module.batch_first,
        "grad_sample_mode": run.source.mode,
        "optimizer": type(run.optimizer.original_optimizer).__name__,
    }


def _device(run: Run) -> torch.device:
    return next(p for p in run.plain.parameters() if p.requires_grad).device


def _check_batches(own: str, saved: str) -> None:
    """Compare the names of batches, of which those over units end in the digest of who owns what."""
    if own == saved:
        return
    mine, _, digest = own.partition(_OF_UNITS)
    theirs, _, other = saved.partition(_OF_UNITS)
    if mine == theirs and digest and other:
        raise MismatchError(
            f"unit_ids, combine or max_examples differ: the checkpoint belongs to units with digest"
            f" {other[:12]}…, this run's have {digest[:12]}…: pass unit_ids=Units(…) with the same owners in"
            " the order of the data, the same combine and the same max_examples."
        )
    if mine == theirs:
        here, there = ("", "out") if digest else ("out", "")
        raise MismatchError(
            f"this run was set up with{here} unit_ids, the checkpoint's with{there}: pass the same unit_ids"
            " to make_private."
        )
    raise MismatchError(
        f"the checkpoint has batches {_short(saved)}, this run {_short(own)}: set up the loader as it was"
        " (shuffle, data, batch sampler)."
    )


def _short(name: str) -> str:
    """A name of batches, its digests cut."""
    return re.sub(r"\b([0-9a-f]{12})[0-9a-f]{52}\b", r"\1…", name)


def _check_states(run: Run, content: Mapping[str, Any]) -> None:
    """Compare names and shapes before anything is changed."""
    own, saved = run.plain.state_dict(), content["module"]
    for name in own.keys() | saved.keys():
        mine, theirs = own.get(name), saved.get(name)
        if _shape(mine) != _shape(theirs):
            raise MismatchError(
                f"module: {name} is {_shape(mine)} here and {_shape(theirs)} in the checkpoint: build the"
                " model as it was."
            )
    groups = run.optimizer.original_optimizer.state_dict()["param_groups"]
    sizes = [len(group["params"]) for group in groups]
    if sizes != [len(group["params"]) for group in content["optimizer"]["param_groups"]]:
        raise MismatchError(
            "the optimizer has other parameter groups than in the checkpoint: build it as it was."
        )


def _shape(value: Any) -> str:
    return f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def check_plain(name: str, value: Any) -> None:
    """Refuse to write what weights_only=True would not read.

    Raises:
        ValueError: naming the place.
    """
    if type(value) in (dict, OrderedDict):
        for key, item in value.items():
            check_plain(f"{name} key", key)
            check_plain(f"{name}[{key!r}]", item)
    elif type(value) in (list, tuple, torch.Size):
        for i, item in enumerate(value):
            check_plain(f"{name}[{i}]", item)
    elif type(value) not in (Tensor, Parameter, str, int, float, bool, type(None)):
        raise ValueError(
            f"{name} is a {type(value).__name__}, which could not be read back without running code from the"
            " file: keep tensors, numbers, strings, lists, tuples and dicts."
        )


def _path(path: Any) -> Path:
    if not isinstance(path, (str, os.PathLike)):
        raise ValueError(
            f"path={type(path).__name__} must be a file name: only a file can be replaced atomically."
        )
    return Path(path)


@contextlib.contextmanager
def _replacing(target: Path) -> Iterator[IO[bytes]]:
    """A new file that takes the place of `target` when it is complete and on disk, and vanishes otherwise."""
    # one name for all attempts, so that killed ones do not pile up; readable by the owner alone
    name = target.with_name(f".{target.name}.partial")
    name.unlink(missing_ok=True)
    handle = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), 0o600)
    try:
        with os.fdopen(handle, "w+b") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, target)
    except BaseException:
        name.unlink(missing_ok=True)
        raise
    if hasattr(os, "O_DIRECTORY"):
        folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


class _HashingWriter:
    """What torch.save needs of a file, with a digest of all that goes through it."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.digest = hashlib.sha256()

    def write(self, data: Any) -> int:
        self.digest.update(data)
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()


class _Window(io.RawIOBase):
    """A file from `start` on."""

    def __init__(self, file: IO[bytes], start: int) -> None:
        self._file, self._start = file, start

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._file.seek(offset + (self._start if whence == os.SEEK_SET else 0), whence) - self._start

    def tell(self) -> int:
        return self._file.tell() - self._start

    def readinto(self, buffer: Any) -> int:
        return self._file.readinto(buffer)  # type: ignore[attr-defined,no-any-return]
