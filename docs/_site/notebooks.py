"""Notebooks as .ipynb: each page of docs/notebooks is written beside itself in the site, with a link to it.

There is no line for a service that opens notebooks: it would need an address where they lie in public.
"""

import json
import re
from pathlib import Path

FOLDER = "notebooks/"


def notebook(text):
    """A page as a notebook without outputs: its blocks of Python are cells of code, the rest is text."""
    cells = []
    for part in re.split(r"^(```python\n.*?^```\n?)", text, flags=re.DOTALL | re.MULTILINE):
        code = re.fullmatch(r"```python\n(.*?)\n?```\n?", part, flags=re.DOTALL)
        if not part.strip():
            continue
        prose = re.sub(r"(\]\([\w./-]+)\.md(#[\w-]+)?\)", r"\1.html\2)", part.strip())
        cell = {"cell_type": "markdown", "source": prose}
        if code:
            cell = {"cell_type": "code", "source": code[1], "outputs": [], "execution_count": None}
        cells.append(cell | {"id": f"cell-{len(cells)}", "metadata": {}})
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def link(app, docname, source):
    if docname.startswith(FOLDER):
        name = docname.removeprefix(FOLDER)
        download = f'<a href="{name}.ipynb" download>This page as a notebook (.ipynb)</a>'
        source[0] = re.sub(r"^(# .*)$", rf"\1\n\n{download}", source[0], count=1, flags=re.MULTILINE)


def write(app, exception):
    if exception or app.builder.name != "html":
        return
    for docname in app.env.found_docs:
        if docname.startswith(FOLDER):
            made = notebook(Path(app.env.doc2path(docname)).read_text("utf-8"))
            (Path(app.outdir) / f"{docname}.ipynb").write_text(json.dumps(made, indent=1), "utf-8")


def setup(app):
    app.connect("source-read", link)
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
