"""Sphinx: MyST pages, furo, and the API from the docstrings."""

import re
from pathlib import Path

root = Path(__file__).parent.parent
source = (root / "src" / "flatnce" / "__init__.py").read_text(encoding="utf-8")

project = "flatnce"
author = "The flatnce authors"
release = re.search(r'^__version__ = "(.+)"$', source, re.MULTILINE)[1]

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
exclude_patterns = ["_build"]
html_theme = "furo"
html_static_path = ["_static"]
html_show_copyright = False
html_title = f"flatnce {release}"

myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

# Signatures carry the types and shapes; the argument lists do not repeat them.
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_custom_sections = [
    "Limits",
    "Relations",
    ("Options shared by the layouts", "params_style"),
]
