"""What a release is made of agrees with itself: version, addresses, links, requirements, workflows."""

import ast
import json
import re
import tomllib
import zlib

import pytest
import yaml

import anechoic as an
from anechoic.statement.theorem import HOME
from tests.rules.pages import ROOT
from tests.test_architecture import STOREY
from tools.recipe import filled

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
FORMS = [path for path in sorted((ROOT / ".github").rglob("*.yml")) if path not in WORKFLOWS]


def jobs(workflow):
    return yaml.safe_load(workflow.read_text())["jobs"]


def test_the_version_is_written_once():
    assert PROJECT["project"]["dynamic"] == ["version", "readme"] and "version" not in PROJECT["project"]
    assert PROJECT["tool"]["hatch"]["version"]["path"] == "src/anechoic/__init__.py"
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    kept = json.loads((ROOT / ".zenodo.json").read_text())
    assert cited["version"] == kept["version"] == an.__version__, "read without Python: copies"
    assert cited["title"] == kept["title"] and f"{{{an.__version__}}}" in (ROOT / "docs/faq.md").read_text()


def test_the_paper_cites_what_its_bibliography_has_and_is_short():
    text, entries = (ROOT / "paper.md").read_text(), (ROOT / "paper.bib").read_text()
    assert set(re.findall(r"@([\w]+)", text)) == set(re.findall(r"^@\w+\{(\w+),", entries, re.MULTILINE))
    assert len(text.split()) <= 1000


def test_no_page_names_an_address_of_the_project_but_the_one_constant():
    """Nobody owns one yet: an invented one would be somebody else's tomorrow."""
    pages = [
        *ROOT.glob("*.*"),
        *(ROOT / "docs").rglob("*.*"),
        *(ROOT / "src").rglob("*.py"),
        *WORKFLOWS,
        *FORMS,
    ]
    for page in (ROOT / "recipe/recipe.yaml", *pages):
        if page.suffix in (".md", ".toml", ".cff", ".py", ".yml", ".yaml", ".json", ".html"):
            own = re.findall(r"https?://[\w./-]*anechoic[\w./-]*", page.read_text(encoding="utf-8"))
            assert not own or (HOME and all(address.startswith(HOME) for address in own)), page


def test_no_message_names_a_file_that_a_wheel_lacks():
    """Docstrings are read in the source; what is printed names a page by its title."""
    for page in sorted((ROOT / "src").rglob("*.py")):
        tree = ast.parse(page.read_text(encoding="utf-8"))
        for node in ast.walk(tree):  # a docstring stands alone, as the value of an expression
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
                node.value.value = ""
        said = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
        paths = [text for text in said if isinstance(text, str) and "docs/" in text]
        assert not paths or page.name == "theorem.py", (page, paths)


def test_links_of_the_readme_lead_nowhere_but_to_addresses_on_an_index():
    text = (ROOT / "README.md").read_text()
    titles = re.findall(r"(?<!!)\[([^\]]+)\]\((?!http|#)", text)
    for rule in PROJECT["tool"]["hatch"]["metadata"]["hooks"]["fancy-pypi-readme"]["substitutions"]:
        text = re.sub(rule["pattern"], rule["replacement"], text)
    assert all(link.startswith(("https://", "#")) for link in re.findall(r"\]\(([^)]+)\)", text))
    assert titles and all(title in text for title in titles) and "![" not in text


def test_the_core_is_below_a_megabyte():
    source = ROOT / "src/anechoic"
    room_of = {path: path.relative_to(source).parts[0] for path in source.rglob("*.py")}
    edges = {room for room, storey in STOREY.items() if storey >= STOREY["torch"]}
    assert {"torch", "demo", "linear"} <= edges and "optimize" not in edges
    core = sum(len(zlib.compress(path.read_bytes())) for path, room in room_of.items() if room not in edges)
    assert core < 1_000_000


def test_the_recipe_asks_for_what_the_wheel_asks_for():
    text = (ROOT / "recipe/recipe.yaml").read_text()
    recipe = yaml.safe_load(filled(text, "1.2.3", "ab" * 32))
    assert recipe["context"]["version"] == "1.2.3" and recipe["context"]["sha256"] == "ab" * 32
    wanted = {entry.replace(" ", "") for entry in recipe["requirements"]["run"]} - {"python>=${{python_min}}"}
    assert wanted == set(PROJECT["project"]["dependencies"])
    host = {entry.replace(" ", "") for entry in recipe["requirements"]["host"]}
    assert set(PROJECT["build-system"]["requires"]) <= host
    with pytest.raises(ValueError, match="0 lines of version"):
        filled("context:\n", "1.2.3", "")


def test_optional_packages_have_the_ranges_of_their_extras_in_the_recipe_too():
    recipe = yaml.safe_load((ROOT / "recipe/recipe.yaml").read_text())
    limits = [entry.replace(" ", "") for entry in recipe["requirements"]["run_constraints"]]
    asked = {one for extra in PROJECT["project"]["optional-dependencies"].values() for one in extra}
    assert {limit.replace("pytorch", "torch") for limit in limits} <= asked


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_calls_targets_and_scripts_that_exist(workflow):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    steps = [step for job in jobs(workflow).values() for step in job.get("steps", [])]
    commands = "\n".join(step.get("run", "") for step in steps)
    called = set(re.findall(r"\bmake ([a-z-]+)", commands))
    assert called <= targets
    assert all((ROOT / script).is_file() for script in re.findall(r"\btools/[\w.]+", commands))
    used = [job["uses"] for job in jobs(workflow).values() if "uses" in job]
    assert all((ROOT / path).is_file() for path in used)
    assert yaml.safe_load(workflow.read_text())["permissions"] == {"contents": "read"}


def test_every_python_of_the_classifiers_is_tried():
    said = re.findall(r":: (3\.\d+)$", "\n".join(PROJECT["project"]["classifiers"]), re.MULTILINE)
    tests = jobs(ROOT / ".github/workflows/tests.yml")
    assert said == tests["test"]["strategy"]["matrix"]["python"] and len(said) >= 4
    assert f"--python {' '.join(said)} " in str(tests["dist"])
