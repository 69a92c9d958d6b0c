"""Formulas of pages and docstrings are understood by what sets them on the site."""

import re
import sys
from pathlib import Path

import pytest

from tests.marks import in_turn

pytest.importorskip("latex2mathml")
pytest.importorskip("sphinx")

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "docs" / "_site"))

from docstrings import restructured, tex  # noqa: E402
from mathml import translated  # noqa: E402

CODE = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)
FORMULA = re.compile(r"\$\$(.+?)\$\$|(?<![\\$\w])\$([^$\s](?:[^$]*[^$\s])?)\$(?!\d)", re.DOTALL)
PLAIN = re.compile(r"(?<![\"'(\[\w|])\$([^$\"'\n]+)\$(?![\"'\w])")


def written():
    """(place, TeX) of all formulas."""
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for display, inline in FORMULA.findall(CODE.sub("", page.read_text(encoding="utf-8"))):
            yield page.name, display or inline
    for file in sorted((ROOT / "src").rglob("*.py")):
        for plain in PLAIN.findall(file.read_text(encoding="utf-8")):
            yield file.name, tex(plain)


def test_every_formula_is_understood():
    found = list(written())
    assert len(found) > 1000
    assert [(place, formula, fault) for place, formula in found if (fault := translated(formula)[1])] == []


@in_turn(
    "plain, expected",
    [
        ("sens(C, Pi) = max_pi ||C U||_F", r"\text{sens}(C, \Pi) = \max_{\pi}\,\Vert C U\Vert_{F}"),
        ("e^epsilon Phi(-mu/2)", r"e^{\varepsilon}\,\Phi(-\mu/2)"),
        ("sqrt(1 - (1 - x) y) >= C^-1", r"\sqrt{1 -(1 - x) y} \ge  C^{-1}"),
        ("c_t = sum_i scale_i d_i^(t-1)", r"c_{t} = \sum_{i}\,\text{scale}_{i}\,d_{i}^{t-1}"),
    ],
)
def test_plain_formulas_become_tex(plain, expected):
    assert tex(plain) == expected


@in_turn(
    "formula, part, fault",
    [
        (r"\begin{aligned}a&=b\\c&=d\end{aligned}", "<mtable", ""),
        (r"\langle a\rangle", '<mo stretchy="false" lspace="0" rspace="0">&#x027E8;</mo>', ""),
        (r"\operatorname{tr}A\succeq B", "<mi>tr</mi>", ""),
        (r"x\sim N", "<mo>&#x0223C;</mo>", ""),
        (r"\max_jx", "<mo>max</mo>", ""),
        ("P'", "<mrow><mi>P</mi><mo", ""),
        ("(-1)", '<mo form="prefix">&#x02212;</mo>', ""),
        (r"\nosuch x", "", r"\nosuch"),
    ],
)
def test_signs_are_set_as_what_they_are(formula, part, fault):
    found, said = translated(formula)
    assert part in found
    assert said == fault


def test_formulas_of_docstrings_stand_in_text_and_on_lines_of_their_own():
    lines = restructured(["As $C^-1$ says,", "", "    $x <= 1$", "", "and `x`."], {})
    assert "As \\ :math:`C^{-1}`\\  says," in lines
    assert lines[lines.index(".. math::") + 2] == "   x \\le  1"


def test_entries_have_their_types_and_attributes_are_attributes():
    lines = ["Attributes:", "    a, b: of C.", "    c (of a kind): n."]
    assert "``c`` (of a kind)" in restructured(lines, {})
    found = restructured(lines, {}, {"a": "int", "b": "float"})
    assert found[found.index(".. py:attribute:: b") :][:4] == [
        ".. py:attribute:: b",
        "   :type: float",
        "",
        "   of C.",
    ]
    assert "   \\n." in found  # counts nothing
