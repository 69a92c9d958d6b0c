"""The site: `make docs` builds it into build/docs/html, without a network. Warnings are errors."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "_site"), str(HERE.parent / "src")]

import anechoic  # noqa: E402

project = "anechoic"
author = "The anechoic authors"
copyright = "the anechoic authors; Apache 2.0"
version = release = anechoic.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "pages",
    "reference",
    "docstrings",
    "mathml",
    "notebooks",
    "llms",
]
exclude_patterns = ["_site", "images/**/*.md"]
templates_path = ["_templates"]
highlight_language = "none"  # a block without a language is output, or several languages

#: Landing page -> the pages under it, in this order, or groups of them by their captions. Pages stay plain
#: Markdown, so their menu stands here. A page that nobody lists comes at the end of the guides.
navigation = {
    "index": ["start", "training", "streaming", "choosing", "reviewer", "api/index"],
    "start": ["why", "from-opacus", "faq", "notebooks/*"],
    "training": {
        "Your script": ["sharp-edges", "users", "clip-norm", "selecting", "resuming", "logging", "speed"],
        "Models": ["vision", "fine-tuning", "frameworks"],
        "Without PyTorch": ["linear"],
    },
    "streaming": {
        "Streams": ["streaming-operators"],
        "Federated": ["federated", "flower"],
        "Several runs": ["budget"],
    },
    "choosing": {
        "Mechanisms": ["mechanisms", "theory", "notation"],
        "Evidence": ["measured", "compare", "papers", "errata"],
    },
    "reviewer": {
        "Review": ["managers", "audit", "proofs/README"],
        "Project": ["project/contributing", "project/changelog"],
    },
    "proofs/README": [
        "proofs/sensitivity",
        "proofs/noise",
        "proofs/amplification",
        "proofs/clipping",
        "proofs/streams",
        "proofs/budget",
    ],
}
unlisted = "training"
#: What a page is called in a menu, where its title is too long for one.
short_titles = {
    "start": "Start",
    "training": "Training",
    "streaming": "Streams",
    "choosing": "Mechanisms",
    "reviewer": "Review",
    "api/index": "API",
    "selecting": "Selecting by trial",
    "frameworks": "Training frameworks",
    "federated": "Federated learning",
    "flower": "Flower",
}
#: Pages whose ```python blocks are run while the site is built; what they print stands below them.
executed = ["start", "why", "notebooks/*"]

# -- Markdown and notebooks ----------------------------------------------------------------------

myst_heading_anchors = 4
myst_enable_extensions = ["dollarmath"]
nb_execution_mode = "cache"
nb_execution_cache_path = str(HERE.parent / "build" / "docs" / "executed")
nb_execution_raise_on_error = True
nb_execution_timeout = 120
nb_merge_streams = True
html_math_renderer = "mathml"

# -- API -----------------------------------------------------------------------------------------

autodoc_default_options = {"members": True}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_type_aliases = {
    "Array": "Array",
    "LossNorm": "LossNorm",
    "Adjacency": "Adjacency",
    "NDArray[Any]": "Array",
}
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 80
add_module_names = False
toc_object_entries_show_parents = "hide"
viewcode_line_numbers = True

# -- HTML ----------------------------------------------------------------------------------------

html_theme = "pydata_sphinx_theme"
html_title = "anechoic"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = True
html_sourcelink_suffix = ""
html_show_sphinx = False
html_theme_options = {
    "logo": {"text": "anechoic"},
    "navbar_end": ["theme-switcher"],
    "navbar_persistent": ["search-button"],
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "show_prev_next": False,
    "navigation_with_keys": False,
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_sidebars = {"index": []}
