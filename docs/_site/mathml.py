"""Mathematics as MathML: the browser sets it with its own fonts, and the site loads no script for it.

latex2mathml gets the elements right, and some kinds of signs wrong, by which browsers space them.
"""

import re

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.util import logging

logger = logging.getLogger(__name__)
ALIGNED = re.compile(r"(begin|end)\{(?:aligned|align\*?)\}")
UNKNOWN = re.compile(r"\\[A-Za-z]+|<mi>&</mi>")
CLOSE = 'stretchy="false" lspace="0" rspace="0"'
#: What is found, and what stands for it, in this order.
MENDED = [
    # functions are names, relations and primes are not
    (r"<mo>((?!max|min|sup|inf|lim|mod)[A-Za-z]{2,})</mo>", r"<mi>\1</mi>"),
    (r"<mi>(&#x0(?:2032|2033|2AAF|2AB0|227A|227B);)</mi>", r"<mo>\1</mo>"),
    (r"<mi>&#x0007E;</mi>", "<mo>&#x0223C;</mo>"),
    (r"(<mi>[a-z]{2,}</mi>)(?=<m(?:i|n|sub|sup|subsup|frac)>)", r'\1<mspace width="0.167em" />'),
    (r"<mo>(max|min|sup|inf)</mo>(?=<mo[^>]*>(?:&#x00028;|&#x027E8;))", r'<mo rspace="0">\1</mo>'),
    # a prime is high by itself
    (r"<msup>(<mi>[^<]*</mi>)<mo>(&#x0203[23];)</mo></msup>", rf"<mrow>\1<mo {CLOSE}>\2</mo></mrow>"),
    # fences and strokes that were not asked to grow
    (
        r'<m([io])(?![^>]*"true")[^>]*>(&#x0(?:002F|007C|2016|27E8|27E9|2308|2309|230A|230B);)</m\1>',
        rf"<mo {CLOSE}>\2</mo>",
    ),
    # a minus behind "(", "[", ",", "=", "<", ">" and their kin belongs to what follows
    (
        r"(<mo[^>]*>(?:&#x000(?:28|2C|3C|3D|3E);|&#x0226[45];|\[)</mo>)<mo>&#x02212;</mo>",
        r'\1<mo form="prefix">&#x02212;</mo>',
    ),
]


def translated(text, display="inline"):
    """(MathML, what in it is not understood, or "")."""
    try:
        found = convert(ALIGNED.sub(r"\1{split}", text), display=display)
    except Exception as error:  # its errors have no common class
        return "", repr(error)
    fault = " ".join(UNKNOWN.findall(found))
    for pattern, instead in MENDED:
        found = re.sub(pattern, instead, found)
    return found, fault


def mathml(node, display="inline"):
    """A formula of a page; one that is not understood is a warning."""
    found, fault = translated(node.astext(), display)
    if fault:
        logger.warning("no MathML for %s: %s", node.astext(), fault, location=node)
    return found


def _inline(self, node):
    self.body.append(mathml(node))
    raise nodes.SkipNode


def _display(self, node):
    number = f'<span class="eqno">({node["number"]})</span>' if node.get("number") else ""
    self.body.append(f'<div class="math">{mathml(node, "block")}{number}</div>')
    raise nodes.SkipNode


def setup(app):
    app.add_html_math_renderer("mathml", (_inline, None), (_display, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
