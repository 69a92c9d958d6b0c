"""Every page of docs/proofs names code and tests that exist, every theorem has its page, and lemmas hold."""

import ast
import math
import re
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from anechoic.accounting.accountant import Accountant
from anechoic.accounting.gaussian import gaussian_delta
from anechoic.mechanism import theorems as mechanism_theorems
from anechoic.mechanism.mechanism import Mechanism
from anechoic.participation import MinSep
from anechoic.sampling import External
from anechoic.sensitivity import theorems as sensitivity_theorems
from anechoic.statement.theorem import Theorem
from anechoic.strategies import BandedToeplitz, Tree
from tests.marks import in_turn

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "docs" / "proofs"
PACKAGE = ROOT / "src" / "anechoic"
PAGES = sorted(path for path in FOLDER.glob("*.md") if path.name != "README.md")

CODE = re.compile(r"`([\w/]+\.py):([\w.]+)`")
TEST = re.compile(r"`(test_\w+)`")
PARTS = ("Statement", "Conditions", "Proof", "Promised", "Tests")
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


@cache
def names_in(path):
    """Functions, classes, methods and constants that a file defines, with their dotted names."""
    found = set()

    def walk(nodes, prefix):
        for node in nodes:
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                found.add(prefix + node.name)
            if isinstance(node, ast.ClassDef):
                walk(node.body, f"{prefix}{node.name}.")
            if isinstance(node, ast.Assign):
                found.update(prefix + target.id for target in node.targets if isinstance(target, ast.Name))
            if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
                found.add(prefix + node.target.id)

    walk(ast.parse(path.read_text(encoding="utf-8")).body, "")
    return found


@cache
def sections_in(page):
    """The anchors of a page, as hosts make them from headings."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {anchor(heading) for heading in headings}


def missing(page, address):
    """Why an address of a proof page leads nowhere, or None."""
    name, _, section = address.partition("#")
    target = (page.parent / name).resolve() if name else page
    if not target.exists():
        return f"{target} does not exist"
    return (
        f"{target.name} has no section {section!r}"
        if section and section not in sections_in(target)
        else None
    )


def anchor(heading):
    """As hosts make it from a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def sections():
    """(page#anchor, text) of every section of the second level."""
    for page in PAGES:
        for part in page.read_text(encoding="utf-8").split("\n## ")[1:]:
            yield f"{page.name}#{anchor(part.partition(chr(10))[0])}", part


@in_turn("section", [*sections()])
def test_the_code_of_a_section_exists(section):
    named = CODE.findall(section[1])
    assert named, "say where the conditions are checked"
    for file, name in named:
        assert (PACKAGE / file).exists(), file
        assert name in names_in(PACKAGE / file), f"{file} has no {name}"


def test_tests_that_are_named_exist():
    there = {
        name.rpartition(".")[2] for path in (ROOT / "tests").rglob("test_*.py") for name in names_in(path)
    }
    for name, text in sections():
        assert TEST.findall(text), f"{name}: name the tests that are paired with it"
        assert {*TEST.findall(text)} <= there, name


@in_turn("section", [*sections()])
def test_a_section_has_its_parts(section):
    places = [section[1].find(f"**{part}.**") for part in PARTS]
    assert -1 not in places and places == sorted(places)


def test_every_page_is_reached_from_a_statement():
    """A theorem names it, or a page that a theorem names links to it; the first page names all."""
    named = {FOLDER / proof.page.partition("#")[0] for proof in listed()}
    texts = [page.read_text(encoding="utf-8") for page in named if page.exists()]
    linked = {
        (FOLDER / address.partition("#")[0]).resolve() for text in texts for address in LINK.findall(text)
    }
    first = LINK.findall((FOLDER / "README.md").read_text(encoding="utf-8"))
    assert set(PAGES) <= named | linked
    assert {page.name for page in PAGES} <= {*first}


FORMULA = re.compile(r"\$\$.+?\$\$|\$[^$]+\$", re.DOTALL)


@in_turn("page", [FOLDER / "README.md", *PAGES])
def test_mathematics_stands_in_formulas(page):
    """What is outside of formulas and code has no Greek letters, indices or signs of operations."""
    text = re.sub(r"`[^`]*`", "", page.read_text(encoding="utf-8"))
    assert FORMULA.search(text)
    outside = FORMULA.sub("", text)
    assert re.findall(r"[α-ωΑ-Ω≤≥‖⁻₀₁√∞Σ∈⟨⟩]|[A-Za-z]\^", outside) == []
    assert [f for f in FORMULA.findall(text) if "\n" in f and not f.startswith("$$")] == []


def final(kind):
    below = kind.__subclasses__()
    return [leaf for each in below for leaf in final(each)] if below else [kind]


def accountants():
    return [each for each in final(Accountant) if each.__module__.startswith("anechoic.")]


def listed():
    """Every theorem that a statement may name."""
    rooms = (sensitivity_theorems, mechanism_theorems)
    constants = [value for room in rooms for value in vars(room).values() if isinstance(value, Theorem)]
    return [*constants, *(each.theorem for each in accountants())]


@in_turn("theorem", listed())
def test_the_page_of_every_theorem_is_there(theorem):
    assert not missing(FOLDER / "README.md", theorem.page), missing(FOLDER / "README.md", theorem.page)


def test_every_accountant_states_its_own_theorem():
    found = [each.theorem for each in accountants()]
    assert len(found) >= 4
    assert len({theorem.page for theorem in found}) == len(found), "each has a section"


def sensitivities_made():
    """(place, number of arguments) of every `Sensitivity` that the library makes."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in (
                "Sensitivity",
                "Sensitivity.of_squared",
            ):
                yield f"{path.name}:{node.lineno}", len(node.args) + len(node.keywords)


@pytest.mark.slow
def test_every_sensitivity_comes_with_its_theorem():
    made = list(sensitivities_made())
    assert len(made) > 30
    assert [place for place, arguments in made if arguments != 4] == []


def test_every_theorem_of_a_sensitivity_gives_one():
    sources = "".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    for name, value in vars(sensitivity_theorems).items():
        if isinstance(value, Theorem):
            assert f"theorems.{name}" in sources, f"{name} is used by nothing"


# -- lemmas whose proof is on a page only -----------------------------------------------------------


def divergences(p, q, epsilon, area):
    """(remove, add): hockey-stick divergences of densities on a grid."""
    return tuple(float(np.maximum(a - math.exp(epsilon) * b, 0).sum() * area) for a, b in ((p, q), (q, p)))


def plane(size=11.0, points=900):
    x = np.linspace(-size, size, points)
    return np.meshgrid(x, x), (x[1] - x[0]) ** 2


def bell(x, y, a, b, std=1.0):
    return np.exp(-((x - a) ** 2 + (y - b) ** 2) / (2 * std**2)) / (2 * math.pi * std**2)


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 1.5])
def test_larger_gram_entries_are_worse(epsilon):
    """Mixtures: Kahane's inequality, also where the Gram matrices are not ordered as semidefinite ones."""
    (x, y), area = plane()
    q, before = bell(x, y, 0, 0), (0.0, 0.0)
    for small, shared in ((0.6, 0.0), (0.6, 0.3), (0.9, 0.3), (1.0, 0.3), (1.0, 0.9)):
        gram = np.array([[1.0, shared], [shared, small]])
        means = np.linalg.cholesky(gram)
        found = divergences(0.3 * bell(x, y, *means[0]) + 0.7 * bell(x, y, *means[1]), q, epsilon, area)
        assert all(b <= a + 1e-9 for a, b in zip(found, before, strict=True))
        before = found
    assert np.linalg.eigvalsh(np.array([[1.0, 0.9], [0.9, 1.0]]) - [[1.0, 0.3], [0.3, 1.0]])[0] < 0


ADAPTIVE = {
    "sign of the first row": np.sign,
    "its opposite": lambda y: -np.sign(y),
    "smooth": lambda y: np.tanh(2 * y - 1),
    "none": np.zeros_like,
}


@pytest.mark.parametrize("name", ADAPTIVE)
@pytest.mark.slow
def test_adaptive_gradients_are_no_worse_than_constant_ones(name):
    """Mixtures: C = [[1, 0], [.7, 1]], patterns {0, 1} and {1}; the second gradient looks at the first
    row. With -.7 it does better than the sum of the columns, but not than that of |C|."""
    (x, y), area = plane()
    q = bell(x, y, 0, 0)

    def law(entry, gradient):
        return 0.4 * bell(x, y, 1, entry + gradient(x)) + 0.6 * bell(x, y, 0, gradient(x))

    for epsilon in (0.0, 0.7, 2.0):
        worst = divergences(law(0.7, np.ones_like), q, epsilon, area)
        found = divergences(law(0.7, ADAPTIVE[name]), q, epsilon, area)
        assert all(a <= b + 1e-9 for a, b in zip(found, worst, strict=True))
    claimed = divergences(law(-0.7, np.ones_like), q, 0.7, area)
    attack = divergences(law(-0.7, lambda y: -np.ones_like(y)), q, 0.7, area)
    assert attack[0] > 1.2 * claimed[0]
    assert attack[0] <= divergences(law(0.7, np.ones_like), q, 0.7, area)[0] + 1e-9


@pytest.mark.slow
def test_opposite_gradients_are_the_worst_to_replace():
    """Adjacency: one step of Poisson sampling, u = (1, 0) against v of any angle and length."""
    import dp_accounting
    from dp_accounting.pld import privacy_loss_distribution

    (x, y), area = plane(8.0, 600)
    rate, relation = 0.3, dp_accounting.NeighboringRelation.REPLACE_ONE
    known = privacy_loss_distribution.from_gaussian_mechanism(
        1.0, sampling_prob=rate, neighboring_relation=relation, value_discretization_interval=1e-3
    )
    rest = (1 - rate) * bell(x, y, 0, 0)
    first = rest + rate * bell(x, y, 1, 0)
    for epsilon in (0.1, 0.6, 1.2):
        worst = 0.0
        for angle, length in product((0.5, 1.6, 2.6, math.pi), (0.0, 0.4, 1.0)):
            second = rest + rate * bell(x, y, length * math.cos(angle), length * math.sin(angle))
            worst = max(worst, *divergences(first, second, epsilon, area))
        allowed = known.get_delta_for_epsilon(epsilon)
        assert allowed * 0.99 <= worst <= allowed * (1 + 1e-3)


@pytest.mark.parametrize("branching", [2, 3])
def test_the_square_strategy_of_a_tree_has_its_bands_and_shorter_columns(branching):
    """More rows than steps: K = R^-1 with R R^T = L L^T."""
    for n in range(1, 20):
        tree = Tree(n, branching)
        left = tree.correlate(np.eye(tree.rows))
        square = np.linalg.inv(np.linalg.cholesky(left @ left.T))
        rows, columns = np.nonzero(np.abs(square) > 1e-9)
        assert (rows - columns).max() < tree.structure.bands
        lengths = np.sqrt(tree.column_norms_squared())
        assert (np.linalg.norm(square, axis=0) <= lengths * (1 + 1e-12)).all()


@in_turn("adjacency", ["zero_out", "replace_one"])
@in_turn("play", ["the same", "in turn", "by what was seen"])
def test_the_game_of_adaptive_streams_is_gdp_at_the_sensitivity(adjacency, play):
    """Theorems 1.11, 1.14, 1.20 and 3.9: a unit in steps 0 and 2 plays against rows of C G + Z it has seen.

    delta at epsilon is the mean of (1 - exp(epsilon - loss))+, the loss that of the game as it was played.
    The same contribution both times attains what the mechanism states; no other play exceeds it.
    """
    strategy = BandedToeplitz(4, [1.0, 0.6, 0.5, 0.3])
    mechanism = Mechanism(strategy, External(MinSep(2), 1, steps=4), 1.7, adjacency=adjacency)
    apart = 1.0 if adjacency == "zero_out" else 2.0  # g against 0, or against -g
    c, std, games = strategy.to_dense(), mechanism.noise_std, 60_000
    rng = np.random.default_rng(7)
    moved, seen, loss = np.zeros((games, 4)), np.zeros(games), np.zeros(games)
    for t in range(4):
        if t == 0 or t == 2:
            sign = {"the same": 1.0, "in turn": 1.0 - t, "by what was seen": np.where(seen > 0, 1.0, -1.0)}[
                play
            ]
            moved[:, t] = apart * sign
        shift = moved @ c[t]
        z = std * rng.standard_normal(games)
        seen += z + shift
        loss += (shift * z + shift**2 / 2) / std**2
    for epsilon in (0.0, 1.0):
        values = np.maximum(0.0, -np.expm1(epsilon - loss))
        found, error = values.mean(), values.std() / math.sqrt(games)
        stated = gaussian_delta(epsilon, mechanism.gdp())
        assert found <= stated + 4 * error
        if play == "the same":
            assert found == pytest.approx(stated, abs=4 * error)
