"""Differential privacy for whole hospitals in NVFlare's simulator: python examples/nvflare/job.py FOLDER

Needs `pip install nvflare` beside anechoic. Prints accuracy on rows of a hospital that took no part, and the
statement for a reviewer. With few clients noise is large: six hospitals at epsilon 20 are for looking only.
"""

import sys
from pathlib import Path

import numpy as np
from client import patients
from controller import PrivateRounds
from nvflare.job_config.api import FedJob
from nvflare.job_config.script_runner import FrameworkType, ScriptRunner

HOSPITALS, INPUTS = 6, 8


def main(folder, epsilon=20.0):
    here, folder = Path(__file__).parent, Path(folder).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    job = FedJob(name="private", min_clients=HOSPITALS)
    job.to_server(PrivateRounds(4, HOSPITALS, HOSPITALS, epsilon, 1e-3, 1.0, INPUTS, str(folder / "run")))
    job.to_clients(ScriptRunner(script=str(here / "client.py"), framework=FrameworkType.NUMPY))
    job.simulator_run(str(folder / "simulator"), n_clients=HOSPITALS, threads=1, log_config="concise")
    model = np.load(folder / "model.npz")
    x, y = patients("site-99")
    right = ((x @ model["weight"] + model["bias"] > 0) == (y > 0)).mean()
    print((folder / "statement.txt").read_text())
    print(f"accuracy of a hospital that took no part: {right:.3f}")


if __name__ == "__main__":
    main(sys.argv[1])
