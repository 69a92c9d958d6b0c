"""A federation of separate processes, with Flower's own commands: TLS, authenticated nodes, faults, a restart."""

import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.flower.federation import BIN, Federation, lines, wait_for

APP = Path(__file__).parent / "app"
BEHAVIOURS = {0: "killed", 1: "late", 2: "large"}

needs_commands = pytest.mark.skipif(
    not all(shutil.which(name, path=str(BIN)) for name in ("flwr", "flower-superlink", "flower-supernode")),
    reason="Flower's commands are not installed beside this Python",
)


@pytest.mark.slow
@needs_commands
@pytest.mark.timeout(240)
def test_thirty_rounds_with_every_fault_and_a_restart(tmp_path):
    report = tmp_path / "report.jsonl"
    with Federation(tmp_path) as federation:
        federation.superlink()
        federation.supernodes(
            [
                f'partition-id={node} num-partitions=10 behaviour="{BEHAVIOURS.get(node, "good")}"'
                for node in range(10)
            ]
        )
        settings = {"report": str(report), "state": str(tmp_path / "state")}
        federation.run(APP, **settings)
        wait_for(lambda: len(lines(report)) > 4, 90, "four rounds")
        federation.kill("node0")
        wait_for(lambda: len(lines(report)) > 12, 120, "twelve rounds")
        os.kill(federation.server_process(), signal.SIGKILL)
        before = lines(report)
        federation.run(APP, **settings)
        wait_for(lambda: "stopped" in (lines(report) or [{}])[-1], 200, "the last round")
    *rounds, last = lines(report)
    assert last["stopped"] is None
    numbers = [line["round"] for line in rounds]
    assert numbers == sorted(set(numbers)) and numbers[-1] == 30
    assert rounds[: len(before)] == before
