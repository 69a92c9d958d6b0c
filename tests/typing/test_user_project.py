"""The types that a user's project sees: py.typed is in the package, and checkers infer what we say."""

import json
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROJECT = Path(__file__).with_name("project.py")
WRONG = [number for number, line in enumerate(PROJECT.read_text().splitlines(), 1) if "# wrong" in line]


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """A project's environment: the package as pip would leave it, and what it depends on."""
    folder = tmp_path_factory.mktemp("project")
    venv.create(folder / "env", with_pip=False)
    (site,) = (folder / "env").glob("lib/python*/site-packages")
    shutil.copytree(
        ROOT / "src" / "anechoic", site / "anechoic", ignore=shutil.ignore_patterns("*.npz", "__pycache__")
    )
    theirs = [path for path in sys.path if path.endswith("site-packages")]
    (site / "theirs.pth").write_text("\n".join(theirs))
    shutil.copy(PROJECT, folder)
    return folder


def found(command, folder):
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False).stdout


@pytest.mark.slow
def test_mypy_strict_sees_the_types_and_the_mistakes(environment):
    pytest.importorskip("mypy")
    printed = found(
        [sys.executable, "-m", "mypy", "--strict", "--python-executable", "env/bin/python", "project.py"],
        environment,
    )
    errors = [line for line in printed.splitlines() if ": error:" in line]
    lines = sorted({int(line.split(":")[1]) for line in errors})
    assert lines == WRONG, printed


@pytest.mark.slow
def test_pyright_strict_sees_the_types_and_the_mistakes(environment):
    if shutil.which("pyright") is None:
        pytest.skip("pyright is not installed")
    settings = {"typeCheckingMode": "strict", "include": ["project.py"]}
    (environment / "pyrightconfig.json").write_text(json.dumps(settings))
    said = json.loads(found(["pyright", "--outputjson", "--pythonpath", "env/bin/python"], environment))
    shown = [f"{d['range']['start']['line'] + 1}: {d['message']}" for d in said["generalDiagnostics"]]
    lines = sorted({int(line.split(":")[0]) for line in shown})
    assert lines == WRONG, "\n".join(shown)
