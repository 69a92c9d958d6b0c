"""The forms of others: nothing is missing, nothing is made up, and what is open is said to be."""

import contextlib
import io
import json
import math
import re
from pathlib import Path

import numpy as np
import pytest

import anechoic as an
from anechoic.participation import Single
from anechoic.sampling import CyclicPoisson, External
from anechoic.statement import forms
from anechoic.statement.forms import OPEN, answers, registry, sacro
from anechoic.statement.rounding import shortened
from anechoic.statement.statement import Statement, statement_of
from anechoic.strategies import BandedToeplitz, Identity

PAGE = Path(__file__).resolve().parents[2] / "docs" / "what-epsilon-means.md"

MADE = {
    "plain": lambda: an.Mechanism(Identity(8), External(Single(), 1, 8), 2.0, unit="patient"),
    "sampled": lambda: an.Mechanism(BandedToeplitz(24, [1.0, 0.5]), CyclicPoisson(1000, 100, 4, 24), 3.0),
    "endless": lambda: an.EndlessMechanism(an.strategies.endless.damped(0.01), 3.0, 100, 0.7),
    "both": lambda: an.compose(MADE["plain"](), times=2),
}


@pytest.fixture(params=MADE)
def mech(request):
    return MADE[request.param]()


def test_every_answer_is_that_of_the_statement_or_open(mech):
    said, form = dict(statement_of(mech).pairs), answers(statement_of(mech))
    assert len({each["question"] for each in form}) == len(form)
    headings = {question: heading for _, asked in forms._LAYERS for question, heading in asked}
    for each in form:
        heading = headings[each["question"]]
        if heading not in ("", "Software"):
            assert each["answer"] == said.get(heading)
        assert heading != "" or each["answer"] is None
    assert sum(each["answer"] is None for each in form) >= 8
    assert json.loads(mech.report("nist-json"))["answers"] == form
    text = mech.report("nist")
    assert text.count(f"**{OPEN}**") == sum(each["answer"] is None for each in form)
    assert text.count("\n## ") == len(forms._LAYERS)


#: Fields of the registry's template: leaves are texts, but for these.
FIELDS = {
    "basic": 8,
    "dp_variant": 3,
    "privacy_loss": 5,
    "deployment_model": 10,
    "implementation": 7,
    "administrative": 4,
}


def leaves(node):
    if isinstance(node, dict | list):
        values = node.values() if isinstance(node, dict) else node
        return [leaf for value in values for leaf in leaves(value)]
    return [node]


def test_the_registry_s_record(mech):
    record = registry(statement_of(mech))
    assert sorted(record) == ["deployment", "url_slug"]
    assert {name: len(part) for name, part in record["deployment"].items()} == FIELDS
    said = json.loads(mech.report("registry"))
    assert said == json.loads(json.dumps(record))
    parameters = said["deployment"]["privacy_loss"]["privacy_parameters"]
    assert mech.epsilon() <= parameters["epsilon"] <= mech.epsilon() * (1 + 1e-5)
    assert parameters["delta"] == mech.delta
    assert ("rho" in parameters) != mech.amplified  # rho holds without amplification
    for leaf in leaves(record):
        assert isinstance(leaf, str | int | float) and leaf != ""
    opened = [leaf for leaf in leaves(record) if str(leaf).startswith(OPEN)]
    assert len(opened) >= 18 and all(len(leaf) > len(OPEN) + 2 for leaf in opened)


def test_numbers_are_shortened_upwards():
    assert str(shortened(0.9999999999999999)) == "1.0" and str(shortened(2.0)) == "2.0"
    assert shortened(math.nextafter(2.0, 3.0)) > 2.0 and shortened(math.inf) == math.inf
    for value in np.random.default_rng(0).lognormal(0.0, 4.0, 300).tolist():
        short = shortened(value)
        assert value <= short <= value * (1 + 1e-5) and len(repr(short).strip("0").replace(".", "")) <= 11
        assert shortened(short) <= short * (1 + 1e-5) and float(f"{short:.5e}") == short


def test_sacro_s_report(mech):
    """The rules of sacroml's schema that concern what is there."""
    report = json.loads(mech.report("sacro"))
    assert {
        "metric_catalog",
        "parameter_catalog",
        "attack_category_catalog",
        "attack_catalog",
        "attacks",
    } <= set(report)
    ((name, attack),) = report["attacks"].items()
    assert re.fullmatch(r"[A-Za-z0-9 _\-]+", name) and list(report["attack_catalog"]["attacks"]) == [name]
    assert set(attack) == {"log_id", "log_time", "metadata", "attack_experiment_logger"}
    assert set(attack["metadata"]) == {"sacroml_version", "attack_name", "attack_params", "global_metrics"}
    (metrics,) = attack["attack_experiment_logger"]["attack_instance_logger"].values()
    defined = report["metric_catalog"]["metrics"]
    assert list(metrics) == list(defined) == report["attack_catalog"]["attacks"][name]["key_metrics"]
    for metric, value in metrics.items():
        assert re.fullmatch(r"[A-Za-z0-9_@.eE+\-]+", metric) and 0.0 < value <= 1.0
        assert "no attack was run" in defined[metric]["description"]
        assert set(defined[metric]) == {"label", "description", "allowed_aggregations"}
    assert metrics["Advantage"] == pytest.approx(2 * metrics["ACC"] - 1)
    assert metrics["TPR@0.001"] < metrics["TPR@0.01"] < metrics["TPR@0.1"]
    category = report["attack_catalog"]["attacks"][name]["attack_category"]
    assert category in report["attack_category_catalog"]["categories"]


def test_a_statement_without_epsilon_bounds_no_attack():
    bare = Statement((("Guarantee", "none"),), (), "", (), (), (), {}, "", {"unit": "example"})
    assert bare.attack == []
    with pytest.raises(ValueError, match="no epsilon"):
        sacro(bare)


def test_the_page_shows_what_its_block_prints():
    text = PAGE.read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(block, {})
    shown = text.split("<!-- begin -->\n")[1].split("<!-- end -->")[0]
    assert shown == printed.getvalue()
