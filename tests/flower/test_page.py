"""docs/flower.md runs as printed: ten nodes, its own numbers, to the last round."""

import re
from pathlib import Path

from flwr.app import Context, RecordDict

from tests.flower.in_process import InProcessGrid

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "flower.md").read_text(encoding="utf-8")


def test_the_quickstart_runs_to_its_last_round(capsys):
    model, *apart = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    exec(model, common := {})
    apps = [{"Net": common["Net"]} for _ in apart]
    for code, names in zip(apart, apps, strict=True):
        exec(code, names)
    nodes = int(re.search(r"num-supernodes=(\d+)", PAGE)[1])
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
    apps[0]["app"](InProcessGrid(apps[1]["app"], nodes), context)
    said = capsys.readouterr()
    assert "20 of 20 rounds" in said.out and "least" not in said.err, "the plan has room"
