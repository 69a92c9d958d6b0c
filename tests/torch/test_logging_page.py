"""docs/logging.md: each logger, by a stand-in, is given what the page permits."""

import json
import sys
from types import ModuleType
from unittest.mock import MagicMock

import pytest

from tests.rules.pages import blocks

pytestmark = pytest.mark.slow
RUN, *LOGGERS = blocks("docs/logging.md")
#: The modules of each block, and where its logger is called with numbers.
STANDINS = {
    "torch.utils.tensorboard": lambda made: [
        {call.args[0]: call.args[1]} for call in made.SummaryWriter().__enter__().add_scalar.call_args_list
    ],
    "wandb": lambda made: [call.args[0] for call in made.init().__enter__().log.call_args_list],
    "mlflow": lambda made: [call.args[0] for call in made.log_metrics.call_args_list],
}


@pytest.mark.parametrize("name", STANDINS)
def test_a_logger_gets_numbers_that_may_leave_and_the_statement(name, monkeypatch):
    block = next(block for block in LOGGERS if f"{name} import" in block or f"import {name}" in block)
    made = MagicMock(spec=ModuleType(name), SummaryWriter=MagicMock(), init=MagicMock(), Settings=MagicMock())
    for attribute in ("log_metrics", "log_text", "start_run"):
        setattr(made, attribute, MagicMock())
    monkeypatch.setitem(sys.modules, name, made)
    scope = {}
    exec(RUN, scope)
    exec(block, scope)
    found = STANDINS[name](made)
    names = {key.replace("_", " ") for numbers in found for key in numbers}
    assert names == {"epsilon", "public loss", "learning rate"}
    spent = [numbers["epsilon"] for numbers in found if "epsilon" in numbers]
    assert len(spent) == 2 and 0 < spent[0] < spent[1] <= 8
    assert scope["engine"].releases == 40
    assert json.loads(scope["engine"].mechanism.to_json())["delta"] == 1e-6
