"""What changes the bits of a training step, and what a run that is resumed elsewhere is held to."""

from __future__ import annotations

import logging
import platform
from typing import Any

import numpy as np
import torch

from anechoic.errors import ReplayError
from anechoic.statement.software import version_of

logger = logging.getLogger("anechoic")


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
