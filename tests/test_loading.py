"""What is loaded when: one process takes the steps of a user one by one and says what it has loaded."""

import json
import subprocess
import sys

import pytest

from tests.test_architecture import NOT_LOADED
from tests.test_cli import PLAN

STEPS = f"""
import json, sys
def loaded(): said[step] = sorted(sys.modules)
said, step = {{}}, "start"
import anechoic as an
step = "import"; loaded()
from anechoic.noise import NoiseStream
stream = NoiseStream(an.strategies.Identity(2), 3)
step = "stream"; loaded()
stream.next(stream.init())
step = "row"; loaded()
mechanism = an.Mechanism(an.strategies.Identity(4), an.sampling.FixedOrder(8, 2, epochs=1), 1.0)
for format in ("text", "markdown", "html", "json"): mechanism.report(format)
step = "report"; loaded()
from anechoic.cli import main
said["code"] = main({PLAN!r})
step = "plan"; loaded()
from anechoic.plots.curves import Axis, Line, line_figure
step = "charts"; loaded()
line_figure([Line("a", "plain", [1.0], [1.0])], x=Axis("x"), y=Axis("y"), title="t")._repr_html_()
step = "drawn"; loaded()
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def said():
    done = subprocess.run([sys.executable, "-c", STEPS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_importing_the_package_loads_what_every_use_needs():
    code = "import sys, anechoic; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    own = [name for name in loaded if name.startswith("anechoic")]
    assert len(own) <= 140, "rooms are imported when they are first used"
    theirs = {"scipy.fft", "scipy.special", "scipy.linalg", "scipy.optimize", "scipy.signal", "scipy.stats"}
    assert not theirs & set(loaded), "half of the time of an import: SciPy loads them when they are used"


@pytest.mark.slow
def test_importing_the_package_loads_nothing_optional(said):
    found = set(NOT_LOADED) & set(said["import"])
    assert not found, f"import anechoic loads {sorted(found)}: import it where it is used"


@pytest.mark.slow
def test_numpy_streams_do_not_load_torch(said):
    assert "torch" not in said["row"]


@pytest.mark.slow
def test_cryptography_is_loaded_with_the_first_row(said):
    assert "cryptography" not in said["stream"]
    assert "cryptography" in said["row"]


def test_a_report_loads_no_torch(said):
    assert not {"torch", "opacus", "matplotlib", "dp_accounting"} & set(said["report"])


def test_plan_loads_no_torch_and_nothing_that_takes_as_long_as_it_does(said):
    assert said["code"] == 0
    slow = {"torch", "opacus", "matplotlib", "dp_accounting", "scipy.signal", "scipy.stats"}
    assert not slow & set(said["plan"])


def test_importing_the_reports_loads_no_matplotlib_and_drawing_no_pyplot(said):
    assert "matplotlib" not in said["charts"]
    assert "matplotlib.pyplot" not in said["drawn"]
