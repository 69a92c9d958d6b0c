"""A state file belongs to one holder: of this process or of another one."""

import gc
import os
import subprocess
import sys

import pytest
from anechoic.runs.exclusive_file import HeldFile

from anechoic.errors import GuaranteeError


def test_a_second_holder_in_this_process_is_told_to_close_the_first(tmp_path):
    first = HeldFile(tmp_path / "s")
    with pytest.raises(GuaranteeError, match="open in this process already"):
        HeldFile(tmp_path / "s")
    first.close()
    HeldFile(tmp_path / "s").close()


@pytest.mark.slow
def test_a_holder_in_another_process_is_refused(tmp_path):
    first = HeldFile(tmp_path / "s")
    path = str(tmp_path / "s")
    code = "from pathlib import Path; from anechoic.runs.exclusive_file import HeldFile"
    code += f"; HeldFile(Path({path!r}))"
    refused = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert refused.returncode and "is open in another process" in refused.stderr
    first.close()
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_nobody_can_close_any_more_is_given_back(tmp_path):
    first = HeldFile(tmp_path / "s")
    del first
    gc.collect()
    HeldFile(tmp_path / "s").close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
def test_a_fork_does_not_keep_a_file_that_was_closed(tmp_path):
    first = HeldFile(tmp_path / "s")
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.read(reader, 1)  # lives on with its own handle
        os._exit(0)
    try:
        first.close()
        HeldFile(tmp_path / "s").close()
    finally:
        os.write(writer, b"x")
        os.waitpid(child, 0)
        os.close(reader)
        os.close(writer)
