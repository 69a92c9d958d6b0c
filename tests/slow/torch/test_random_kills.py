"""kill -9 at random moments: no row of noise is ever in two releases, and the journal knows every one."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not hasattr(os, "fork"), reason="needs POSIX processes")]


def ask(folder, *commands, timeout=280):
    """What `tests.slow.torch.processes` finds, by command, in a process that no other test has touched."""
    paths = [str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.slow.torch.processes", str(folder), *commands],
        cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        output, errors = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    assert process.returncode == 0, errors
    return json.loads(output.splitlines()[-1]), errors


def check_kills(found, wanted):
    assert found["kills"] >= wanted
    assert (found["twice"], found["unknown"], found["odd"]) == (0, 0, []), found
    assert found["repeated"] > 0  # or nothing was tried


@pytest.mark.timeout(3600)
def test_two_hundred_random_kills(tmp_path):
    found, errors = ask(tmp_path, "kills:200:7", timeout=3500)
    check_kills(found["kills"], 200)
    assert found["kills"]["refused"] > 0  # scripts that were changed
    assert "would now be another one" in errors


@pytest.fixture(scope="module")
def asked(tmp_path_factory):
    return ask(tmp_path_factory.mktemp("asked"), "resumed", "sweep")


def test_a_script_that_ends_and_is_started_again(asked):
    found, errors = asked[0]["resumed"], asked[1]
    for name, seen in found.items():
        assert seen["twice"] == [], name
        if name not in ("without journal", "cut journal"):
            assert seen["unknown"] == [], name
    refused = {name for name, seen in found.items() if 3 in seen["codes"]}
    assert refused == found.keys() - {"unchanged", "rolled back"}
    for name in ("unchanged", "rolled back"):
        assert found[name]["codes"] == [0, 0] and found[name]["repeated"] >= 3
    for words in (
        "would now be another one",
        "draws from a generator of its own",
        "is missing: without it",
        "was not closed, and its log",
        "is another file than the one that the training run wrote",
    ):
        assert words in errors


def test_forks_of_an_engine_have_noise_of_their_own_or_none(asked):
    found, errors = asked[0]["sweep"], asked[1]
    # the same model, batches and learning rate 0: what differs is noise
    assert found["drawn"]["codes"] == [0, 0] and found["drawn"]["difference"] > 0.3
    assert found["given"]["codes"] == [3, 3]
    assert "is a fork of it: make" in errors
