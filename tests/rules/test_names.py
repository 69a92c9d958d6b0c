"""Names in backticks, in docstrings, comments and pages, are names of something that is there."""

import ast
import io
import re
import tokenize
from functools import cache

import pytest

from tests.rules.pages import DOCS, ROOT, can_be_reached, text_of

SOURCES = [path for folder in ("src", "studies") for path in sorted((ROOT / folder).rglob("*.py"))]
OTHERS = [path for folder in ("tests", "benchmarks", "examples") for path in (ROOT / folder).rglob("*.py")]
PAGES = [*sorted(DOCS.rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
ROOMS = {path.stem for path in (ROOT / "src" / "anechoic").iterdir()}

NAME = re.compile(r"(?<!`)`([A-Za-z_][\w.]*)(?:\([^`]*\))?`(?!`)")
FILE = re.compile(r"\.(json|jsonl|md|csv|html|py|npz|svg|pt|toml|txt|pem|db|cff)$")
#: Of frameworks, files and packages, where no line of ours names them.
THEIRS = """
    accumulate_grad_batches autolog basicConfig bert.private CombineGlobally compute_loss dependencies
    clip_grad_norm_ EarlyStopping EarlyStoppingCallback fabric.setup fabric.setup_dataloaders foreachBatch
    gradient_accumulation_steps gradient_clip_val InstanceNorm LightningModule location losses.sum m10
    major.minor.patch mixed_precision np.loadtxt Of OneHotEncoder owner_aid ProcessWindowFunction
    resume_from_checkpoint spark.driver.maxResultSize torch.FloatTensor wandb.watch
"""


@cache
def known():
    """Every identifier of the code, and every word that is a string of its own."""
    found = set()
    for path in SOURCES + OTHERS:
        found.update(path.relative_to(ROOT).with_suffix("").parts)
        for token in tokens(path):
            if token.type == tokenize.NAME:
                found.add(token.string)
            elif token.type == tokenize.STRING and re.fullmatch(r"""[rbf]*["'][\w.-]+["']""", token.string):
                found.update(re.findall(r"\w+", token.string))
    return found


@cache
def members():
    """What classes define."""
    found = set()
    for path in SOURCES:
        for node in ast.walk(ast.parse(text_of(path))):
            if isinstance(node, ast.ClassDef):
                found.update(part.name for part in node.body if isinstance(part, ast.FunctionDef))
                found.update(
                    ast.unparse(part.target) for part in node.body if isinstance(part, ast.AnnAssign)
                )
    return found


def tokens(path):
    return tokenize.generate_tokens(io.StringIO(text_of(path)).readline)


def texts(path):
    """Docstrings and comments of a module, or a page without its blocks of code."""
    if path.suffix == ".md":
        yield re.sub(r"```.*?```", "", text_of(path), flags=re.DOTALL)
        return
    for node in ast.walk(ast.parse(text_of(path))):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            yield ast.get_docstring(node) or ""
    yield from (token.string for token in tokens(path) if token.type == tokenize.COMMENT)


def is_there(name):
    """Whether a name is one of a file or of other people, in the code, or one that can be reached."""
    if FILE.search(name) or name in THEIRS.split():
        return True
    first, *rest = name.split(".")
    if not all(part in known() for part in (first, *rest) if part):
        return False
    if not rest or first == "torch" or first not in ROOMS | {"anechoic", "an", "studies"}:
        return True
    start = {"an": "anechoic", "anechoic": "anechoic", "studies": "studies"}.get(first, f"anechoic.{first}")
    return can_be_reached(".".join([start, *rest])) or (len(rest) == 1 and rest[0] in members())


@pytest.mark.slow
@pytest.mark.parametrize("where", [SOURCES, PAGES], ids=["code", "pages"])
def test_every_name_in_backticks_is_there(where):
    gone = {
        f"{path.relative_to(ROOT)}: `{name}`"
        for path in where
        for text in texts(path)
        for name in NAME.findall(text)
        if not is_there(name)
    }
    assert not gone, "\n".join(sorted(gone))


@pytest.mark.slow
def test_what_is_gone_is_seen():
    assert (
        is_there("accounting.loss_distributions.importance_sampling")
        and is_there("mechanism.epsilon")
        and is_there("an.plan")
    )
    assert not is_there("accounting.bin_classes") and not is_there("_dense_" + "balance")
