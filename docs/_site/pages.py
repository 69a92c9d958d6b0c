"""What the site adds to plain Markdown: menus, pages that are run, and links that leave docs/.

The pages of docs/ are read on their own too, so nothing of this stands in them.
"""

import re
from fnmatch import fnmatch
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.errors import ExtensionError

OUTWARD = re.compile(r"\[([^\]]+)\]\(((?:\.\./|images/)[^)#]*)(#[^)]*)?\)")
RUN = "---\nfile_format: mystnb\nkernelspec:\n  name: python3\n  display_name: python3\n---\n"


def menu(app, landing):
    """Caption -> pages under a landing page, in order of the menu; those that are not there are left out."""
    found = sorted(app.env.found_docs)
    navigation = {name: grouped(pages) for name, pages in app.config.navigation.items()}
    pages = {
        caption: [
            name for pattern in patterns for name in found if fnmatch(name, pattern) and name != landing
        ]
        for caption, patterns in navigation[landing].items()
    }
    if landing == app.config.unlisted:
        listed = [one for groups in navigation.values() for patterns in groups.values() for one in patterns]
        known = [*listed, *navigation]
        pages[[*pages][-1]] += [
            name
            for name in found
            if not any(fnmatch(name, one) for one in known) and not name.startswith("api/")
        ]
    return pages


def grouped(pages):
    """A menu as groups by their captions; a list is one group without."""
    return pages if isinstance(pages, dict) else {"": pages}


def is_markdown(app, docname):
    return Path(app.env.doc2path(docname)).suffix == ".md"


def read(app, docname, source):
    """A page as it is on disk becomes the page of the site."""
    text = source[0]
    if is_markdown(app, docname):
        text = OUTWARD.sub(lambda link: outward(app, docname, link), text)
        if any(fnmatch(docname, one) for one in app.config.executed) and not text.startswith("---"):
            text = RUN + text.replace("```python\n", "```{code-cell} python\n")
        if docname in app.config.navigation:
            short = app.config.short_titles
            for caption, pages in menu(app, docname).items():
                names = "\n".join(
                    f"{short[name]} </{name}>" if name in short else f"/{name}" for name in pages
                )
                said = f":caption: {caption}\n" if caption else ""
                text += f"\n```{{toctree}}\n:hidden:\n{said}\n{names}\n```\n"
    source[0] = text


def outward(app, docname, link):
    """A link to a file of the repository: to its page where it has one, else the file; a folder is named."""
    text, target, anchor = link.groups()
    folder = Path(app.env.doc2path(docname)).parent
    file = (folder / target).resolve()
    root = Path(app.srcdir).parent
    if not file.exists():
        raise ExtensionError(f"docs/{docname}.md links to {target}, which is not there")
    if file.parent == root and (page := f"project/{file.stem.lower()}") in app.env.found_docs:
        return f"[{text}](/{page}.md{anchor or ''})"
    page = file.relative_to(root / "docs").with_suffix("") if file.is_relative_to(root / "docs") else None
    if file.suffix == ".md" and page is not None and page.as_posix() in app.env.found_docs:
        return link.group()  # a page in another folder of docs/
    if file.is_dir() or file.suffix == ".md":  # Markdown that has no page of its own here
        return f"`{file.relative_to(root)}`"
    return link.group()


def connect_names(app, doctree):
    """`anechoic.room.name` in the text of a page leads to its entry in the reference."""
    docname = app.env.docname
    if not is_markdown(app, docname):
        return
    names = app.config.public_names
    for literal in list(doctree.findall(nodes.literal)):
        name = re.sub(r"^an\.", "anechoic.", re.sub(r"\(.*\)$", "", literal.astext()))
        if name not in names or isinstance(literal.parent, (nodes.reference, nodes.title)):
            continue
        link = addnodes.pending_xref(
            "", refdomain="py", reftype="obj", reftarget=name, refdoc=docname, refwarn=True
        )
        literal.replace_self(link)
        link += literal


def setup(app):
    app.add_config_value("navigation", {}, "env")
    app.add_config_value("unlisted", "", "env")
    app.add_config_value("short_titles", {}, "env")
    app.add_config_value("executed", [], "env")
    app.add_config_value("public_names", set(), "env")
    app.connect("source-read", read)
    app.connect("doctree-read", connect_names)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
