"""A statement as one HTML file that holds all it shows, for the screen in light or dark and for paper."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from anechoic.statement.statement import Statement

_STYLE = """
:root{color-scheme:light dark;--ink:#1c2128;--soft:#57606a;--line:#d9dee3;--paper:#fff;--wash:#f4f6f8;
--link:#104e8b}
@media(prefers-color-scheme:dark){:root{--ink:#e3e7eb;--soft:#9aa4ae;--line:#3a4149;--paper:#16191d;
--wash:#20252b;--link:#8cbcf0}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:860px;margin:0 auto;padding:36px 24px 64px}
h1{font-size:26px;line-height:1.25;margin:0 0 14px}
h2{font-size:18px;margin:34px 0 8px}
.guarantee{background:var(--wash);border:1px solid var(--line);border-radius:8px;padding:14px 18px;margin:0;
font-size:18px;font-weight:600;overflow-wrap:anywhere}
dl{display:grid;grid-template-columns:10rem 1fr;margin:18px 0 0}
dt,dd{margin:0;padding:8px 0;border-bottom:1px solid var(--line)}
dt{font-weight:600;padding-right:14px}
dd,li,code{overflow-wrap:anywhere}
ul{padding-left:20px;margin:8px 0}
li{margin:5px 0}
a{color:var(--link)}
code{font:13.5px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
.soft{color:var(--soft);font-size:14px}
@media(max-width:600px){dl{grid-template-columns:1fr}dt{border:0;padding:10px 0 0}dd{padding-top:0}}
@media print{:root{--ink:#000;--soft:#333;--line:#bbb;--paper:#fff;--wash:#fff;--link:#000}
body{font-size:11pt}main{max-width:none;padding:0}dt,dd,li{break-inside:avoid}h2{break-after:avoid}
a::after{content:" (" attr(href) ")"}}
"""


def as_html(statement: Statement, proofs: str) -> str:
    """The statement as a whole HTML document; links lead into `proofs`, a folder or an address."""
    (_, guarantee), *rest = statement.items
    pairs = "".join(f"<dt>{escape(heading)}</dt><dd>{escape(text)}</dd>" for heading, text in rest)
    folder = proofs.rstrip("/")
    links = (
        f'<a href="{escape(f"{folder}/{proof.page}")}">{escape(proof.title)}</a>'
        for proof in statement.proofs
    )
    versions = ", ".join(f"{name} {version}" for name, version in statement.software.items())
    body = [
        "<h1>Privacy statement</h1>",
        f'<p class="guarantee">{escape(guarantee)}</p>',
        f"<dl>{pairs}</dl>",
        _section(
            "Access to data",
            (f"<b>{escape(each.who)}</b>: {escape(each.what)}" for each in statement.assumptions),
        ),
        _section("Observer", [escape(dict(statement.pairs)["Observer"])]),
        _section("What a deployment must ensure", map(escape, statement.duties)),
        _section("Not covered", map(escape, statement.not_covered)),
        _section("Proofs", links),
        f"<h2>Identity</h2>\n<p>Fingerprint: <code>{escape(statement.fingerprint)}</code></p>\n"
        f'<p class="soft">Computed with {escape(versions)}.</p>',
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<title>Privacy statement</title>\n<link rel="icon" href="data:,">\n'
        f"<style>{_STYLE}</style>\n</head>\n"
        "<body>\n<main>\n" + "\n".join(body) + "\n</main>\n</body>\n</html>\n"
    )


def _section(heading: str, entries: Iterable[str]) -> str:
    return f"<h2>{heading}</h2>\n<ul>" + "".join(f"<li>{entry}</li>" for entry in entries) + "</ul>"
