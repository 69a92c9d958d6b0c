"""Docstrings of this library as reStructuredText: plain text with sections, code, `names` and $formulas$.

A formula is plain too, `$delta(epsilon) <= e^epsilon sqrt(mu_1)$`, for those who read it in a terminal.
"""

import re
import textwrap

SECTION = re.compile(r"(Args|Attributes|Raises|Returns|Yields|Example|Examples|References):$")
ENTRY = re.compile(r"(\*{0,2}[\w.]+(?:, \*{0,2}[\w.]+)*)( \(.+?\))?: (.*)", re.DOTALL)
LITERAL = re.compile(r"(``.+?``|`[^`]+`|\$[^$]+\$)", re.DOTALL)
ALONE = (r"(?<![A-Za-z\\])", r"(?![A-Za-z])")
#: What stands in a plain formula, and its TeX, in this order.
TEX = [
    (r"sqrt\(((?:[^()]|\([^()]*\))*)\)", r"\\sqrt{\1}"),
    (r"([_^])(-?[A-Za-z0-9]+)", r"\1{\2}"),
    (r"\^\(([^()]*)\)", r"^{\1}"),
    (r"\^\{T\}", r"^\\top "),
    (r"\|\|", r"\\Vert "),
    (r"<-", r"\\leftarrow "),
    (r"<=", r"\\le "),
    (r">=", r"\\ge "),
    (r"…", r"\\dots "),
    (r" \* ", r"\\cdot "),
    (rf"{ALONE[0]}epsilon{ALONE[1]}", r"\\varepsilon "),
    (rf"{ALONE[0]}inf{ALONE[1]}", r"\\infty "),
    (rf"{ALONE[0]}(delta|mu|rho|sigma|alpha|gamma|lambda|omega|pi|Pi|Phi){ALONE[1]}", r"\\\1 "),
    (rf"{ALONE[0]}(sum|max|min|log|exp|in){ALONE[1]}", r"\\\1 "),
    (rf"{ALONE[0]}([A-Za-z]{{2,}}){ALONE[1]}", r"\\text{\1}"),
    (r"(?<=[\w}]) +(?=\\text)|(?<=\}) +(?=[A-Za-z]|\\(?!le|ge))", r"\\,"),
    (r" +(?=[_^{}()/,]|$)", ""),
]


def inline(text, names):
    """A paragraph: what is in backticks is code, and a link where it is a public name; all else is text."""
    parts = LITERAL.split(" ".join(text.split()))
    return "".join(marked(part, names) if k % 2 else plain(part) for k, part in enumerate(parts))


def marked(part, names):
    """Code or a formula; the empty escapes let it stand beside a letter."""
    return f"\\ :math:`{tex(part)}`\\ " if part[0] == "$" else code(part.strip("`"), names)


def tex(formula):
    """The TeX of a plain formula between dollars."""
    found = " ".join(formula.strip("$ ").split())
    for pattern, instead in TEX:
        found = re.sub(pattern, instead, found)
    return found


def plain(text):
    return re.sub(r"([\\*|]|(?<=\w)_(?!\w))", r"\\\1", text)


def code(text, names):
    bare = re.sub(r"\(.*\)$", "", text)
    return f"\\ :py:obj:`{text} <{names[bare]}>`\\ " if bare in names else f"\\ ``{text}``\\ "


def blocks(lines):
    """Runs of lines between empty ones."""
    block = []
    for line in [*lines, ""]:
        if line.strip():
            block.append(line.rstrip())
        elif block:
            yield block
            block = []


def body(lines, names):
    """Text with code, which is set in, and with lists."""
    out = []
    for block in blocks(lines):
        if block[0].lstrip().startswith("$") and block[0].startswith(" "):
            formulas = re.findall(r"\$[^$]+\$", " ".join(block))
            out += [".. math::", "", *(f"   {tex(formula)}" for formula in formulas), ""]
        elif block[0].startswith((" ", ">>>")):
            language = "pycon" if block[0].lstrip().startswith(">>>") else "none"
            kept = textwrap.indent(textwrap.dedent("\n".join(block)), "   ").split("\n")
            out += [f".. code-block:: {language}", "", *kept, ""]
        elif re.match(r"([*-]|\d+\.) ", block[0]):
            for item in re.split(r"\n(?=(?:[*-]|\d+\.) )", "\n".join(block)):
                mark, text = item.split(" ", 1)
                out.append(f"{mark} {inline(text, names)}")
            out.append("")
        else:
            out += [inline("\n".join(block), names), ""]
    return out


def entries(lines, names):
    """`name: text` with text that goes on further in: a list of names and what they mean."""
    out = []
    joined = re.sub(r"\n(?=\S)", "\0", textwrap.dedent("\n".join(lines)).strip()).split("\0")
    for entry in joined:
        if found := ENTRY.match(re.sub(r",\s*\n\s*", ", ", entry) if ENTRY.match(entry) is None else entry):
            said, kind, text = found.groups()
            out.append(", ".join(f"``{name}``" for name in said.split(", ")) + inline(kind or "", names))
            for block in blocks(text.split("\n")):
                out += [f"   {inline(chr(10).join(block), names)}", ""]
        else:
            out += [inline(entry, names), ""]
    return out


def restructured(lines, names):
    """A docstring as autodoc has it, without its common margin."""
    out, text = [], []
    rest = list(lines)
    while rest:
        line = rest.pop(0)
        if not (found := SECTION.match(line)):
            text.append(line)
            continue
        inside = []
        while rest and (not rest[0].strip() or rest[0].startswith(" ")):
            inside.append(rest.pop(0))
        out += body(text, names)
        text, title = [], found.group(1)
        out += [f".. rubric:: {title}", ""]
        if title in ("Args", "Attributes", "Raises"):
            out += entries(inside, names)
        elif title.startswith("Example"):
            kept = textwrap.indent(textwrap.dedent("\n".join(inside)).strip(), "   ").split("\n")
            out += [f".. code-block:: {'pycon' if '>>>' in kept[0] else 'python'}", "", *kept, ""]
        else:
            out += body(textwrap.dedent("\n".join(inside)).split("\n"), names)
    return out + body(text, names)


def process(app, what, name, thing, options, lines):
    lines[:] = restructured(lines, app.config.public_short)


def skip(app, what, name, thing, skipped, options):
    """What a base class of another library brings along is said there."""
    home = getattr(thing, "__module__", None) or ""
    return True if home and not home.startswith("anechoic") and callable(thing) else None


def setup(app):
    app.add_config_value("public_short", {}, "env")
    app.connect("autodoc-process-docstring", process)
    app.connect("autodoc-skip-member", skip)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
