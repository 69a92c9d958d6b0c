"""What the built site must keep, page by page: python -m tests.rules.site build/docs/html"""

import inspect
import re
import sys
from functools import cached_property
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import anechoic as an
from anechoic.planning.records import PlanRow
from anechoic.planning.result import Plan

LARGEST = 2 * 2**20  # bytes of a page
#: Elements whose address the browser loads by itself.
LOADED = {("script", "src"), ("img", "src"), ("iframe", "src"), ("link", "href"), ("source", "src")}
#: Classes that people use, of which every name is in the reference: path -> class.
WHOLE = {
    "anechoic.Mechanism": an.Mechanism,
    "anechoic.EndlessMechanism": an.EndlessMechanism,
    "anechoic.Composition": an.Composition,
    "anechoic.planning.result.Plan": Plan,
    "anechoic.planning.records.PlanRow": PlanRow,
    "anechoic.torch.PrivacyEngine": an.torch.PrivacyEngine,
    "anechoic.streaming.Stream": an.streaming.Stream,
    "anechoic.federated.Server": an.federated.Server,
    "anechoic.noise.NoiseStream": an.noise.NoiseStream,
    "anechoic.budget.BudgetBook": an.budget.BudgetBook,
}


def called(thing):
    """Public methods and properties of a class, its own and those from base classes of ours."""
    kinds = (property, cached_property, classmethod, staticmethod)
    return sorted(
        {
            name
            for base in thing.__mro__
            if base.__module__.startswith("anechoic.")
            for name, one in vars(base).items()
            if not name.startswith("_") and (inspect.isfunction(one) or isinstance(one, kinds))
        }
    )


class Page(HTMLParser):
    """What the checks ask of a page."""

    def __init__(self, path):
        super().__init__()
        self.ids, self.links, self.loads, self.pictures, self.headings = set(), [], [], [], []
        self.language = None
        self.feed(path.read_text("utf-8"))

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        if "id" in given:
            self.ids.add(given["id"])
        if tag == "html":
            self.language = given.get("lang")
        if tag == "a" and given.get("href"):
            self.links.append(given["href"])
        if tag == "img":
            self.pictures.append((given.get("src", ""), given.get("alt")))
        if re.fullmatch(r"h[1-6]", tag):
            self.headings.append(int(tag[1]))
        self.loads += [
            value
            for name, value in attributes
            if (tag, name) in LOADED
            and given.get("rel") not in ("canonical", "next", "prev", "index", "search")
        ]


def is_outside(address):
    parts = urlsplit(address)
    return bool(parts.netloc) or parts.scheme not in ("", "data", "mailto")


def read(site):
    """Path -> page, of pages that people read: source listings are the theme's affair."""
    return {
        path: Page(path)
        for path in sorted(site.rglob("*.html"))
        if not path.relative_to(site).parts[0].startswith("_")
        and path.name not in ("genindex.html", "search.html")
    }


def faults_of_page(page):
    """Of one page, without its links."""
    if page.language != "en":
        yield "says no language"
    if page.headings.count(1) != 1:
        yield f"has {page.headings.count(1)} titles"
    for before, after in zip(page.headings, page.headings[1:], strict=False):
        if after > before + 1:
            yield f"goes from a heading of level {before} to one of level {after}"
    for source, words in page.pictures:
        if not (words or "").strip():
            yield f"shows {source} without a text in its place"
    for address in page.loads:
        if is_outside(address):
            yield f"loads {address}"


def faults_of_links(path, pages):
    """Links of a page to places that are not there."""
    for link in pages[path].links:
        parts = urlsplit(link)
        if is_outside(link):
            if parts.scheme not in ("http", "https") or "." not in parts.netloc or re.search(r"\s", link):
                yield f"has the link {link}, which is no address"
            continue
        if parts.scheme or link == "#":
            continue
        target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
        if not target.exists():
            yield f"links to {link}, which is not there"
        elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].ids:
            yield f"links to {link}: the page has no such place"


def faults(site):
    """(page, what is wrong with it), of the whole site."""
    pages = read(site)
    for path, page in pages.items():
        name = path.relative_to(site).as_posix()
        if path.stat().st_size > LARGEST:
            yield name, f"has {path.stat().st_size:,} bytes, more than {LARGEST:,}"
        for fault in (*faults_of_page(page), *faults_of_links(path, pages)):
            yield name, fault
    ids = {one for path, page in pages.items() if path.parent.name == "api" for one in page.ids}
    for path, thing in WHOLE.items() if ids else ():
        if lacks := sorted({path, *(f"{path}.{name}" for name in called(thing))} - ids):
            yield "api", f"has no entry for {', '.join(lacks)}"
    for sheet in site.rglob("*.css"):
        for address in re.findall(r"(?:url\(|@import)\s*[\"']?(https?:[^\"')]+)", sheet.read_text("utf-8")):
            yield sheet.relative_to(site).as_posix(), f"loads {address}"
    listed = re.findall(r"\]\(([^)]+)\)", (site / "llms.txt").read_text("utf-8"))
    for file in ("searchindex.js", *listed):
        if not (site / file).exists():
            yield file, "is not there"
    if not listed or not pages:
        yield "llms.txt", "lists nothing"


def outward(site):
    """Addresses outside of the site, for somebody with a network to try."""
    return sorted({link for page in read(site).values() for link in page.links if is_outside(link)})


def main(folder):
    site = Path(folder).resolve()
    found = list(faults(site))
    for name, fault in found:
        print(f"{name} {fault}")
    (site.parent / "external-links.txt").write_text("\n".join(outward(site)) + "\n", "utf-8")
    print(f"{len(read(site))} pages, {len(outward(site))} links outward, {len(found)} faults")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
