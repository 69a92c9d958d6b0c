"""Separate processes by Flower's own commands: TLS, authenticated nodes, faults, a restart."""

import itertools
import os
import shutil
import signal
from pathlib import Path

import pytest

from tests.slow.flower.federation import BIN, Federation, lines, wait_for

APP = Path(__file__).resolve().parents[2] / "flower" / "app"
BEHAVIOURS = {0: "killed", 1: "late", 2: "large", 3: "rubbish"}
# Two groups, as two machines would have them: each at an address of its own, the second lost as a whole.
GROUPS = {"127.0.0.1": range(5), "127.0.0.2": range(5, 10)}
HOSTS = [host for host, nodes in GROUPS.items() for _ in nodes]

needs_commands = pytest.mark.skipif(
    not all(shutil.which(name, path=str(BIN)) for name in ("flwr", "flower-superlink", "flower-supernode")),
    reason="Flower's commands are not installed beside this Python",
)


def configs():
    return [
        f'partition-id={node} num-partitions=10 behaviour="{BEHAVIOURS.get(node, "good")}"'
        for node in range(10)
    ]


@pytest.mark.slow
@needs_commands
@pytest.mark.timeout(3000)
def test_thirty_rounds_with_every_fault_and_a_restart(tmp_path):
    """Ten nodes in two groups: one is killed, one late, one sends too much, one what nobody can read;
    the server is killed, and goes on; then a whole group is killed, and comes back with its keys.

    About four minutes on two cores that have nothing else to do.
    """
    report = tmp_path / "report.jsonl"
    with Federation(tmp_path) as federation:
        federation.superlink()
        federation.supernodes(configs(), HOSTS)
        settings = {"report": str(report), "state": str(tmp_path / "state"), "patience": 600.0}
        run = federation.run(APP, **settings)
        wait_for(lambda: len(lines(report)) > 4, 600, "four rounds")
        federation.kill("node0")
        wait_for(lambda: len(lines(report)) > 10, 600, "ten rounds")
        os.kill(federation.server_process(), signal.SIGKILL)
        before = lines(report)
        run = federation.run(APP, **settings)
        wait_for(lambda: len(lines(report)) > len(before) + 2, 600, "rounds of the second server")
        for node in GROUPS["127.0.0.2"]:
            federation.kill(f"node{node}")
        lost = len(lines(report))

        def over():
            """Whether the run is; who manages the processes of the group starts those that have ended.

            A node that was killed is registered as being there until its heartbeats are missed: its key is
            refused until then, and a SuperNode ends.
            """
            for node in GROUPS["127.0.0.2"]:
                if f"node{node}" not in federation.processes or federation.ended(f"node{node}"):
                    federation.supernode(node, configs()[node], "127.0.0.2")
            return "statement" in (lines(report) or [{}])[-1]

        try:
            wait_for(over, 1200, "the last round")
        except AssertionError:
            print(federation.flwr("log", run, "test", "--show"))
            print((tmp_path / "node7.log").read_text()[-3000:])
            raise
    *rounds, last = lines(report)
    assert last["stopped"] is None
    assert [line["round"] for line in rounds if line["round"]] == sorted(
        {line["round"] for line in rounds} - {0}
    )
    assert rounds[-1]["round"] == 30
    assert rounds[: len(before)] == before, "what was released before the restart stays as it was"
    assert any("longer than the clip norm" in str(line) or line["refused"] for line in rounds)
    assert last["nearest"] >= 3 and last["participations"] <= 10 * 10
    assert lost < 25, "the group is gone in the middle of the run"
    assert last["clients"] <= 10, "who comes back is known again, whatever its node id is now"
    assert "registered public key" in last["statement"]
    moves = [
        max(abs(new - old) for new, old in zip(line["model"], earlier["model"], strict=True))
        for earlier, line in itertools.pairwise(rounds)
    ]
    assert max(moves) < 5, "no update moves the model by more than clip norm and noise"
