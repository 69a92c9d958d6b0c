"""docs/budget.md: its block runs as pasted, and its commands are read."""

import re
import shlex
from pathlib import Path

from anechoic.cli.parser import parser_of_all

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "budget.md").read_text(encoding="utf-8")


def test_the_commands_are_read():
    commands = re.findall(r"^\$ anechoic (.*)$", PAGE, flags=re.MULTILINE)
    assert len(commands) == 3
    for command in commands:
        assert parser_of_all().parse_args(shlex.split(command)).command == "budget"
