"""An HTML page that holds everything it shows, for the screen in light or dark and for paper."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

#: Of a page of its own, light and dark.
STYLE = """
:root{color-scheme:light dark;--ink:#1c2128;--soft:#57606a;--line:#dfe3e8;--paper:#fff;--wash:#f6f7f9;
--planned:#104e8b;--independent:#c44e12;--link:#104e8b}
@media(prefers-color-scheme:dark){:root{--ink:#e3e7eb;--soft:#9aa4ae;--line:#3a4149;--paper:#16191d;
--wash:#20252b;--planned:#8cbcf0;--independent:#f0a27a;--link:#8cbcf0}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);
font:16px/1.55 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:1080px;margin:0 auto;padding:40px 24px 72px}
.kicker{color:var(--soft);font-size:14px;letter-spacing:.02em;margin:0 0 10px}
h1{font-size:clamp(25px,4.2vw,38px);line-height:1.2;letter-spacing:-.015em;margin:0 0 16px;font-weight:680;
text-wrap:balance}
h2{font-size:22px;line-height:1.3;margin:56px 0 10px;letter-spacing:-.01em}
p{margin:0 0 12px;max-width:72ch;overflow-wrap:anywhere}
a{color:var(--link)}
.lead{font-size:18px}
.soft,figcaption{color:var(--soft);font-size:14px}
.guarantee,.card{background:var(--wash);border:1px solid var(--line);border-radius:10px;padding:16px 18px}
.guarantee{font-size:18px;font-weight:600;max-width:none}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(210px,1fr));gap:14px;margin:26px 0 8px}
.card .eps{font-size:14px;color:var(--soft);margin:0 0 2px}
.card .gain{font-size:30px;line-height:1.2;font-weight:680;letter-spacing:-.02em;margin:0 0 6px;
font-variant-numeric:tabular-nums}
.card .from{margin:0;font-size:14px;font-variant-numeric:tabular-nums}
b.planned{color:var(--planned)}b.independent{color:var(--independent)}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,440px),1fr));gap:28px;align-items:start}
figure{margin:18px 0 0;min-width:0}
.text{margin-top:18px}
figcaption{margin-top:8px;max-width:64ch}
.scroll{overflow-x:auto;margin:14px 0}
table{border-collapse:collapse;width:100%;font-size:15px;font-variant-numeric:tabular-nums}
th,td{padding:7px 12px;text-align:right;white-space:nowrap;border-bottom:1px solid var(--line)}
th:first-child,td:first-child{text-align:left;padding-left:0}
thead th{color:var(--soft);font-weight:600;font-size:13.5px}
td.best{font-weight:700;background:var(--wash)}
dl{display:grid;grid-template-columns:10.5rem 1fr;margin:12px 0 0;font-size:15px}
dt,dd{margin:0;padding:8px 0;border-bottom:1px solid var(--line)}
dt{font-weight:600;padding-right:14px}
dd,li,code{overflow-wrap:anywhere}
details{border:1px solid var(--line);border-radius:10px;padding:0 18px;margin:12px 0}
details[open]{padding-bottom:18px}
summary{cursor:pointer;padding:12px 0;font-weight:600}
ul{padding-left:20px;margin:10px 0;max-width:76ch}
li{margin:6px 0}
code,pre{font:13.5px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
pre{background:var(--wash);border:1px solid var(--line);border-radius:8px;padding:12px 14px;overflow-x:auto}
code{background:var(--wash);padding:1px 5px;border-radius:4px}pre code{padding:0;background:none}
img.chart{display:block;width:100%;max-width:600px;height:auto;background:#fff;border-radius:6px}
@media(max-width:600px){main{padding:24px 16px 48px}h2{margin-top:42px}.lead{font-size:16.5px}
dl{grid-template-columns:1fr}dt{border:0;padding:10px 0 0}dd{padding-top:0}
table{font-size:14px}th,td{padding:7px 6px}}
@media print{:root{--ink:#000;--soft:#333;--line:#bbb;--paper:#fff;--wash:#fff;--link:#000}
body{font-size:11pt}main{max-width:none;padding:0}h2{break-after:avoid}
details,figure,dt,dd,li{break-inside:avoid}a::after{content:" (" attr(href) ")"}}
"""

#: Of a cell in a notebook, which has its own colours and may be dark: pictures bring their own paper.
_CELL = (
    ".anechoic .pair{display:flex;flex-wrap:wrap;gap:16px}.anechoic figure{margin:0;flex:1 1 400px;"
    "max-width:560px}.anechoic figcaption{font-size:90%}.anechoic img.chart{background:#fff;"
    "border-radius:6px;padding:8px;width:100%;height:auto}.anechoic td.best{font-weight:700}"
    ".anechoic .scroll{overflow-x:auto}.anechoic dl{display:grid;grid-template-columns:10rem 1fr;margin:0}"
    ".anechoic dt{font-weight:600}.anechoic dt,.anechoic dd{margin:0;padding:3px 8px 3px 0}"
)


def cell(*parts: str) -> str:
    """What a notebook shows of an object; the parts must be HTML already."""
    return f'<div class="anechoic"><style>{_CELL}</style>{"".join(parts)}</div>'


def page(title: str, body: str) -> str:
    """A whole HTML document around `body`, which must be HTML already."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<title>{escape(title)}</title>\n<link rel="icon" href="data:,">\n<style>{STYLE}</style>\n</head>\n'
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def section(heading: str, *parts: str) -> str:
    """A heading with what belongs to it; the parts must be HTML already."""
    return "\n".join(["<section>", f"<h2>{escape(heading)}</h2>", *parts, "</section>"])


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph of plain text."""
    return f"<p{_class(kind)}>{escape(text)}</p>"


def figure(picture: str, caption: str) -> str:
    """A picture (HTML) and its caption (plain text)."""
    return f"<figure>{picture}<figcaption>{escape(caption)}</figcaption></figure>"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, best: Iterable[tuple[int, int]] = ()) -> str:
    """A table of plain text that scrolls sideways where it must; `best` are (row, column) to stand out."""
    marked = set(best)
    out = ["<div class=scroll><table><thead><tr>", *(f"<th scope=col>{escape(cell)}</th>" for cell in head)]
    out.append("</tr></thead><tbody>")
    for r, row in enumerate(rows):
        cells = (
            f"<td{_class('best' if (r, c) in marked else '')}>{escape(cell)}</td>"
            for c, cell in enumerate(row)
        )
        out.append(f"<tr>{''.join(cells)}</tr>")
    return "".join([*out, "</tbody></table></div>"])


def definitions(items: Iterable[tuple[str, str]]) -> str:
    """Headings and their texts."""
    return "<dl>" + "".join(f"<dt>{escape(a)}</dt><dd>{escape(b)}</dd>" for a, b in items) + "</dl>"


def bullets(items: Iterable[str]) -> str:
    """A list of plain texts."""
    return listed(map(escape, items))


def listed(items: Iterable[str]) -> str:
    """A list of items that are HTML already."""
    return "<ul>" + "".join(f"<li>{item}</li>" for item in items) + "</ul>"


def fold(summary: str, content: str, *, opened: bool = False) -> str:
    """Content (HTML) that opens on a click."""
    return f"<details{' open' if opened else ''}><summary>{escape(summary)}</summary>{content}</details>"


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""
