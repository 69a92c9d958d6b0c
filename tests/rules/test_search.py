"""What the site's search puts first: its order is docs/_site/scorer.js, run here with Sphinx's search."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.rules.pages import DOCS

sphinx = pytest.importorskip("sphinx")

TITLES = {
    "training": "Training with PyTorch",
    "clip-norm": "Which clip norm do I take?",
    "faq": "Questions",
    "federated": "Federated learning",
    "proofs/clipping": "Clip norm and dropout",
    "api/torch": "anechoic.torch",
    "project/changelog": "Clip norm",
}
SECTIONS = {"Which learning rate?": ("faq", "rate"), "Dropout": ("proofs/clipping", "dropout")}
WORDS = ["clip", "norm", "learning", "rate", "dropout", "get_epsilon", "epsilon"]
NAMES = ["PrivacyEngine", "PrivacyEngine.get_epsilon", "PrivacyEngine.epsilon", "PrivacyEngine.clip_norm"]
#: What is looked for, and the pages and places that come first, in their order.
FIRST = {
    "clip norm": ["clip-norm", "federated"],
    "learning rate": ["faq#rate", "federated"],
    "Dropout": ["federated", "faq", "training", "clip-norm", "proofs/clipping#dropout"],
    "get_epsilon": ["api/torch#anechoic.torch.PrivacyEngine.get_epsilon", "federated"],
    "privacyengine": ["api/torch#anechoic.torch.PrivacyEngine"],
    "epsilon": ["api/torch#anechoic.torch.PrivacyEngine.epsilon", "federated"],
    "what is the learning rate": ["faq#rate"],
    "c++(": [],
}
ASK = """
const page = { location: { search: "" } };
const around = {
  URLSearchParams, SPHINX_HIGHLIGHT_ENABLED: false, _: (text) => text, _ready: () => {},
  document: { getElementById: () => null }, localStorage: { setItem: () => {} }, window: page,
  stopwords: new Set(["what", "is", "the"]), Stemmer: class { stemWord(word) { return word; } },
};
const [files, index, queries] = JSON.parse(require("fs").readFileSync(0));
const vm = require("vm").createContext(around);
require("vm").runInContext(files.join("\\n") + "\\nthis.search = Search;", vm);
around.search._index = index;
const found = queries.map((query) => {
  page.location.search = "?q=" + encodeURIComponent(query);
  const results = around.search._performSearch(...around.search._parseQuery(query));
  return results.reverse().map((one) => one[0] + one[2]);
});
console.log(JSON.stringify(found));
"""


def index():
    pages = list(TITLES)
    everywhere = list(range(len(pages)))
    titles = {title: [[pages.index(page), None]] for page, title in TITLES.items()}
    titles |= {title: [[pages.index(page), place]] for title, (page, place) in SECTIONS.items()}
    return {
        "docnames": pages,
        "filenames": pages,
        "titles": list(TITLES.values()),
        "alltitles": titles,
        "indexentries": {},
        "terms": dict.fromkeys(WORDS, everywhere),
        "titleterms": {},
        "objects": {"anechoic.torch": [[pages.index("api/torch"), 0, 1, "", name] for name in NAMES]},
        "objnames": {"0": ["py", "class", "Python class"]},
    }


def test_names_come_first_then_headings_of_guides_then_guides():
    if shutil.which("node") is None:
        pytest.skip("node runs the search")
    theirs = Path(sphinx.__file__).parent / "themes/basic/static/searchtools.js"
    files = [theirs.read_text("utf-8"), (DOCS / "_site/scorer.js").read_text("utf-8")]
    given = json.dumps([files, index(), list(FIRST)])
    ran = subprocess.run(["node", "-e", ASK], input=given, capture_output=True, text=True, check=True)
    found = dict(zip(FIRST, json.loads(ran.stdout), strict=True))
    assert {query: found[query][: len(first)] for query, first in FIRST.items()} == FIRST
