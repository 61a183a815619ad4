"""Sphinx: MyST pages and notebooks, furo, and the API from the docstrings."""

import html
import re
from pathlib import Path
from pkgutil import resolve_name

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

root = Path(__file__).parent.parent
source = (root / "src" / "flatnce" / "__init__.py").read_text(encoding="utf-8")

project = "flatnce"
author = "The flatnce authors"
release = re.search(r'^__version__ = "(.+)"$', source, re.MULTILINE)[1]

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
]
# A third of the build's time, for pages without a word of ours: not where only faults are sought.
if not tags.has("without-source"):  # noqa: F821 (Sphinx puts it here)
    extensions.append("sphinx.ext.viewcode")
exclude_patterns = ["_build"]
html_theme = "furo"
html_static_path = ["_static"]
html_show_copyright = False
html_title = f"flatnce {release}"

myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

# Notebooks are text: their outputs are never kept, and an error in a cell fails the build. Each
# runs in a folder of its own, so that what it writes does not lie in the source tree.
nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_execution_timeout = 300
# What is written to stderr (Python's warnings, mostly) stays on the page, and is a warning of the
# build: an error under -W.
nb_output_stderr = "warn"
nb_merge_streams = True

# Signatures carry the types and shapes; the argument lists do not repeat them.
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_custom_sections = [
    "Limits",
    "Relations",
    ("Options shared by the layouts", "params_style"),
]
# A reference that leads nowhere is a warning. Left out are the types in signatures, most of them
# torch's and numpy's, and modules, constants and inner functions that have no entry of their own.
nitpicky = True
nitpick_ignore_regex = [
    ("py:(class|data|mod)", ".*"),
    ("py:func", r"flatnce\.(data\.augmentation|evaluate\.channels|recipes\.reproduce)\..*"),
]

# MathML, which browsers draw by themselves: MathJax would be fetched from elsewhere on every page
# with a formula, and a reader without a network would see TeX.
html_math_renderer = "mathml"
# What docutils' converter does not know, in words that it does; brackets grow by themselves.
SPELLINGS = {r"\\([bB]igg?|textstyle)(?![A-Za-z])": "", r"\\dots(?![A-Za-z])": r"\\ldots"}


def formula(node: nodes.Element, block: bool) -> str:
    """A formula as MathML; one that cannot be converted is shown as TeX, with a warning."""
    tex = node.astext()
    for pattern, known in SPELLINGS.items():
        tex = re.sub(pattern, known, tex)
    try:
        return tex2mathml(tex, as_block=block)
    except MathError as error:
        log = logging.getLogger(__name__)
        log.warning("this formula is no MathML (%s): %s", error, tex, location=node)
        return f"<code>{html.escape(tex)}</code>"


def inline_formula(writer: HTML5Translator, node: nodes.Element) -> None:
    """Write a formula of a sentence."""
    writer.body.append(formula(node, block=False))
    raise nodes.SkipNode


def displayed_formula(writer: HTML5Translator, node: nodes.Element) -> None:
    """Write a formula that stands alone, and its number where it has one."""
    writer.body.append(writer.starttag(node, "div", CLASS="math"))
    if node.get("number"):
        writer.body.append(f'<span class="eqno">({node["number"]})</span>')
    writer.body.append(formula(node, block=True) + "</div>\n")
    raise nodes.SkipNode


def named(dotted: str) -> object:
    """What a dotted name stands for; None where it stands for nothing."""
    try:
        return resolve_name(dotted)
    except (ImportError, AttributeError, ValueError):
        return None


def documented_name(
    app: Sphinx, env: BuildEnvironment, node: nodes.Element, content: nodes.Element
) -> nodes.Element | None:
    """Find by the name that users type what is documented under another."""
    target = node.get("reftarget", "")
    wanted = named(target) if target.startswith(f"{project}.") else None
    if node.get("refdomain") != "py" or not callable(wanted):
        return None
    domain, last = env.domains.python_domain, "." + target.rpartition(".")[2]
    for name in domain.objects:
        if name.endswith(last) and named(name) is wanted:
            page, kind = node["refdoc"], node["reftype"]
            return domain.resolve_xref(env, page, app.builder, kind, name, node, content)
    return None


def setup(app: Sphinx) -> None:
    """Register the formulas' writer and the public names."""
    app.connect("missing-reference", documented_name)
    app.add_html_math_renderer("mathml", (inline_formula, None), (displayed_formula, None))
