"""docs/flower.md runs as printed: ten nodes, its own numbers, to the last round."""

import re
from pathlib import Path

import torch
from flwr.app import Context, RecordDict

from anechoic.flower.grid import InProcessGrid

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "flower.md").read_text(encoding="utf-8")


class Net(torch.nn.Linear):
    def __init__(self):
        super().__init__(3, 2)


def test_the_quickstart_runs_to_its_last_round(capsys):
    server, client = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    apps = [{"Net": Net}, {"Net": Net}]
    exec(server, apps[0])
    exec(client, apps[1])
    nodes = int(re.search(r"num-supernodes=(\d+)", PAGE)[1])
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
    apps[0]["app"](InProcessGrid(apps[1]["app"], nodes), context)
    said = capsys.readouterr()
    assert "20 of 20 rounds" in said.out and "least" not in said.err, "the plan has room"
