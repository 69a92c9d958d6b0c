"""Whether a process can repeat another one's releases bit for bit: what must be the same."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import torch

from anechoic.errors import ReplayError


def environment(device: torch.device) -> dict[str, Any]:
    """Everything known to change the bits of a training step on `device`, as strings, numbers and bools."""
    found: dict[str, Any] = {
        "anechoic": _version("anechoic"),
        "torch": str(torch.__version__),
        "opacus": _version("opacus"),
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
        found["device"] = f"cuda: {torch.cuda.get_device_name(device)}"
        found["cuda"] = str(torch.version.cuda)
        found["cudnn_benchmark"] = torch.backends.cudnn.benchmark
        found["cudnn_allow_tf32"] = torch.backends.cudnn.allow_tf32
    return found


_REMEDIES = {
    "threads": "call torch.set_num_threads({0}), or set OMP_NUM_THREADS={0}",
    "deterministic_algorithms": "call torch.use_deterministic_algorithms({0}) first, in both processes",
    "default_dtype": "call torch.set_default_dtype({0})",
    "float32_matmul_precision": "call torch.set_float32_matmul_precision({0!r})",
    "mkldnn": "set torch.backends.mkldnn.enabled = {0}",
    "device": "move the model there before make_private",
}


def check_replayable(saved: dict[str, Any], now: dict[str, Any]) -> None:
    """Refuse where repeated releases might differ from the first in a bit.

    The noise rows would be the same, so the difference of two such releases would be one of gradients.

    Raises:
        ReplayError: naming what differs, and how to make it the same.
    """
    for name in sorted(saved.keys() | now.keys()):
        if saved.get(name) != now.get(name):
            remedy = _REMEDIES.get(name, "resume with {0}").format(saved.get(name))
            raise ReplayError(
                f"{name}={now.get(name)} was {saved.get(name)} when the checkpoint was written: releases"
                " made after it could not be repeated bit for bit, and their noise must not be used for"
                f" other gradients. To resume, {remedy}; or start a new run, whose privacy cost adds to this"
                " one's."
            )
    if str(saved.get("device", "")).startswith("cuda") and not saved["deterministic_algorithms"]:
        raise ReplayError(
            "deterministic_algorithms=False on a CUDA device: its kernels may round differently each time,"
            " so releases made after the checkpoint could not be repeated bit for bit. Call"
            " torch.use_deterministic_algorithms(True) before the run, and again before resuming; or start a"
            " new run, whose privacy cost adds to this one's."
        )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "source"
