"""A state file belongs to one holder: of this process or of another one."""

import subprocess
import sys

import pytest

from anechoic.errors import GuaranteeError
from anechoic.runs.held import HeldFile


def test_a_second_holder_in_this_process_is_told_to_close_the_first(tmp_path):
    first = HeldFile(tmp_path / "s")
    with pytest.raises(GuaranteeError, match="open in this process already"):
        HeldFile(tmp_path / "s")
    first.close()
    HeldFile(tmp_path / "s").close()


def test_a_holder_in_another_process_is_refused(tmp_path):
    first = HeldFile(tmp_path / "s")
    path = str(tmp_path / "s")
    code = f"from pathlib import Path; from anechoic.runs.held import HeldFile; HeldFile(Path({path!r}))"
    refused = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert refused.returncode and "is open in another process" in refused.stderr
    first.close()
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
