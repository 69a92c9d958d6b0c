"""llms.txt: the site for programs that read, a line for each page with the address of its Markdown."""

from pathlib import Path

from docutils import nodes


def first_paragraph(doctree):
    found = (one for one in doctree.findall(nodes.paragraph) if isinstance(one.parent, nodes.section))
    return " ".join(next(found, nodes.paragraph()).astext().split())


def first_sentence(doctree):
    text = first_paragraph(doctree).split(". ")[0].rstrip(".:")
    return f"{text}." if text else ""


def write(app, exception):
    if exception or app.builder.name != "html":
        return
    env = app.env
    lines = [f"# {app.config.project}", "", f"> {first_paragraph(env.get_doctree('index'))}", ""]
    for landing in app.config.navigation["index"]:
        lines += [f"## {env.titles[landing].astext()}", ""]
        for name in [landing, *below(env, landing)]:
            source = Path(env.doc2path(name)).suffix
            sentence = first_sentence(env.get_doctree(name))
            lines.append(f"- [{env.titles[name].astext()}](_sources/{name}{source}): {sentence}".rstrip(": "))
        lines.append("")
    (Path(app.outdir) / "llms.txt").write_text("\n".join(lines), "utf-8")


def below(env, name):
    for child in env.toctree_includes.get(name, []):
        yield child
        yield from below(env, child)


def setup(app):
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
