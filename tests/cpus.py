"""The rooms that make releases, on other processors: kernels of OpenBLAS, and no AVX-512, no AVX2.

    python -m tests.cpus                  all variants: digests, then the rooms
    python -m tests.cpus -- tests/noise   all variants, other tests
    python -m tests.cpus haswell no-avx2  some variants

A variant is a set of environment variables. Before anything else a process proves that they took effect: the
architecture that OpenBLAS names, the features that NumPy's `show_runtime` finds, torch's CPU capability. What
this processor cannot run is said, and does not count as run.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ROOMS = (
    *("tests/noise", "tests/runs", "tests/mechanism", "tests/federated", "tests/streaming"),
    *("tests/torch/sources", "tests/torch/test_engine.py", "tests/torch/test_release_attacks.py"),
)
AVX512 = ("X86_V4", "AVX512_ICL", "AVX512_SPR")
# What the switches of this file set, so that those of the caller do not mix with them.
SWITCHES = (
    *("OPENBLAS_CORETYPE", "NPY_DISABLE_CPU_FEATURES", "NPY_ENABLE_CPU_FEATURES", "ATEN_CPU_CAPABILITY"),
    *("MKL_CBWR", "ONEDNN_MAX_CPU_ISA"),
)


@dataclass(frozen=True)
class Variant:
    """Environment variables, the processor's features that they need, and what must then be seen.

    Attributes:
        kernel: of OpenBLAS; None leaves it as it is.
        without: features that NumPy must not use.
        torch: the capability that torch must name.
        needs: a feature of the processor, as NumPy calls it; "" for none.
    """

    kernel: str | None = None
    without: tuple[str, ...] = ()
    torch: str | None = None
    needs: str = ""
    more: Mapping[str, str] = field(default_factory=dict)

    def environment(self, features):
        """Of the processes of the variant; NumPy wants to hear of features that the processor has only."""
        given = {name: value for name, value in os.environ.items() if name not in SWITCHES} | dict(self.more)
        if self.kernel is not None:
            given["OPENBLAS_CORETYPE"] = self.kernel
        if disabled := [name for name in self.without if name in features]:
            given["NPY_DISABLE_CPU_FEATURES"] = " ".join(disabled)
        if self.torch is not None:
            given["ATEN_CPU_CAPABILITY"] = self.torch.lower()
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        return given | threads

    def faults(self, seen):
        """What is not as the variant says."""
        found = []
        if self.kernel is not None and seen["openblas"] != [self.kernel.lower()]:
            found.append(f"OpenBLAS uses {seen['openblas']}, not {self.kernel}")
        if still := sorted(set(self.without) & set(seen["numpy"])):
            found.append(f"NumPy still uses {still}")
        if self.torch is not None and seen["torch"] != self.torch:
            found.append(f"torch uses {seen['torch']}, not {self.torch}")
        return found


# The wheels of NumPy and SciPy have no kernel of their own for Zen: it runs Haswell's, and says so.
VARIANTS = {
    "sandybridge": Variant("Sandybridge"),
    "haswell": Variant("Haswell", needs="X86_V3"),
    "skylakex": Variant("SkylakeX", needs="X86_V4"),
    "no-avx512": Variant(
        "Haswell", AVX512, "AVX2", "X86_V4", {"ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "AVX2"}
    ),
    "no-avx2": Variant(
        "Nehalem",
        ("X86_V3", *AVX512),
        "DEFAULT",
        "X86_V3",
        {"ONEDNN_MAX_CPU_ISA": "SSE41", "MKL_CBWR": "COMPATIBLE"},
    ),
}


def run(variant, features, *arguments):
    command = [sys.executable, *arguments]
    environment = variant.environment(features)
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def measured(variant, features):
    """What a process of the variant says that it uses, and its digests.

    Raises:
        RuntimeError: if it cannot run, or the switches changed nothing.
    """
    done = run(variant, features, "-m", "tests.golden")
    if done.returncode:
        raise RuntimeError(f"ends with {done.returncode}: {done.stderr.strip()[-2000:]}")
    found = json.loads(done.stdout)
    if faults := variant.faults(found["uses"]):
        raise RuntimeError("the switch took no effect: " + "; ".join(faults))
    return found["uses"], found["digests"]


def different(one, other):
    return sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))


def main(arguments):
    names, rooms = arguments, list(ROOMS)
    if "--" in arguments:
        cut = arguments.index("--")
        names, rooms = arguments[:cut], arguments[cut + 1 :]
    if unknown := sorted(set(names) - set(VARIANTS)):
        sys.exit(f"{unknown} are no variants: choose among {', '.join(VARIANTS)}")
    plain, expected = measured(Variant(), ())
    features, failed = plain["numpy"], []
    print("this processor:", plain, flush=True)
    for name in names or VARIANTS:
        variant = VARIANTS[name]
        if variant.needs and variant.needs not in features:
            print(f"{name}: not run, this processor has no {variant.needs}", flush=True)
            continue
        seen, found = measured(variant, features)
        print(f"{name}: {seen}", flush=True)
        others = different(expected, found)
        done = run(variant, features, "-m", "pytest", "-q", "-m", "not slow", *rooms)
        summary = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
        print(*[f"  other bits: {one}" for one in others], *summary, sep="\n", flush=True)
        print("  " + done.stdout.strip().splitlines()[-1], flush=True)
        if others or done.returncode:
            failed.append(name)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main(sys.argv[1:])
