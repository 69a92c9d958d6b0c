"""docs/secure-sums.md, run as it stands; what it says of thresholds is what the code says."""

import re
from pathlib import Path

import numpy as np

from anechoic.federated.secure_sum import Stage

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "secure-sums.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)


def test_the_page_sums_what_eleven_of_twelve_sent(capsys):
    assert len(BLOCKS) == 1
    scope = {}
    exec(BLOCKS[0], scope)
    assert capsys.readouterr().out == f"[  0  55 110 165] {tuple('abcdefghijk')}\n"
    np.testing.assert_array_equal(scope["total"].vector, np.arange(4) * 55)


def test_the_page_has_a_row_for_every_stage_in_order():
    table = PAGE.split("| stage | the client sends |")[1].split("\n\n")[0]
    assert re.findall(r"^\| `([A-Z]+)`", table, flags=re.MULTILINE) == [stage.name for stage in Stage]
