"""Read the pages of the project: README.md, the guides, proofs and notebooks."""

import importlib
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted(DOCS.glob("*.md"))]
PROOFS, NOTEBOOKS = (sorted((DOCS / folder).glob("*.md")) for folder in ("proofs", "notebooks"))
#: Words in a sentence that a tired reader reads once.
LONG = 30


def text_of(page):
    """Return the text of a page, given as a path or by its name from the root."""
    return (ROOT / page).read_text("utf-8")


def blocks(page):
    """Return the blocks of Python of a page."""
    return re.findall(r"^```python\n(.*?)^```", text_of(page), flags=re.DOTALL | re.MULTILINE)


def without_code(text):
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def run(page, count):
    """Run the `count` blocks of a page one after the other, and return the names at their end."""
    shown, scope = blocks(page), {}
    assert len(shown) == count
    for block in shown:
        exec(block, scope)
    return scope


def links(page):
    """Yield (link, file, anchor) of the links and pictures of a page that lead into the project."""
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(text_of(page))):
        if not re.match(r"[a-z]+:", target):
            file, _, anchor = target.partition("#")
            yield target, ((ROOT / page).parent / file).resolve() if file else ROOT / page, anchor


def anchors(page):
    """Return the anchors of headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", without_code(text_of(page)), flags=re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).lower() for title in titles]
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in plain}


def sentences(text):
    """Yield (words, sentence) of a page; a cell of a table and an item of a list are sentences.

    Code, headings and pictures do not count, nor does what a program wrote between `begin` and `end` marks.
    """
    text = re.sub(r"<!-- (\w+) -->.*?<!-- end.*? -->", "", without_code(text), flags=re.DOTALL)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    text = re.sub(r"`[^`\n]*`", "Code", text)
    parts = [""]
    for line in text.splitlines():
        bare = line.strip()
        if not bare or bare.startswith(("#", "<", "!")):
            parts.append("")
        elif bare.startswith("|"):
            parts += [*bare.strip("|").split("|"), ""]
        elif re.match(r"([*-]|\d+\.)\s", bare):
            parts.append(re.sub(r"^([*-]|\d+\.)\s+", "", bare))
        else:
            parts[-1] += " " + bare
    for part in parts:
        for sentence in re.split(r"(?<=[.!?])[*_)]*\s+(?=[^a-z\s])|(?<=[.!?]\*\*)\s+", part):
            words = re.findall(r"\S*\w\S*", sentence)
            if len(words) > 3:
                yield len(words), sentence.strip()


def can_be_reached(name):
    """Whether a dotted name is that of a module, or of something in one."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[count:]:
            if not hasattr(found, attribute) and attribute not in getattr(found, "__annotations__", {}):
                return False
            found = getattr(found, attribute, None)
        return True
    return False
