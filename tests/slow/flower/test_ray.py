"""Flower's own simulation engine, with Ray."""

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import json, sys
from flwr.serverapp import ServerApp
from flwr.simulation import run_simulation
from tests.flower import small

app = ServerApp()

@app.main()
def main(grid, context):
    models, found = small.run(small.strategy(patience=60.0), grid, timeout=30)
    expected = small.models_without_flower()
    small.same(models, expected)
    with open(sys.argv[1], "w") as file:
        json.dump({"released": len(models), "stopped": found.stopped}, file)

run_simulation(app, small.client_app(), num_supernodes=small.CLIENTS,
               backend_config={"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": 2}})
"""


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs anechoic[flower-simulation]")
@pytest.mark.timeout(240)
def test_a_run_on_ray_is_bit_for_bit_that_without_flower(tmp_path):
    root = Path(__file__).resolve().parents[3]
    environment = {
        **os.environ,
        "PYTHONPATH": f"{root / 'src'}{os.pathsep}{root}",
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_HOME": str(tmp_path),
        "RAY_USAGE_STATS_ENABLED": "0",
        "OMP_NUM_THREADS": "1",
    }
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "found.json")],
        cwd=root,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=200)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    found = tmp_path / "found.json"
    assert found.exists(), said
    assert json.loads(found.read_text()) == {"released": 6, "stopped": None}
