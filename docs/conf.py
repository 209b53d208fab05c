"""The site: built from the root of the clone, so that chapters are pages.

sphinx-build -c docs . build/site
"""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

from docutils import nodes
from docutils.utils.math import MathError, latex2mathml
from sphinx.util import logging

project = "minimha"
author = "the minimha authors"
project_copyright = "2026, the minimha authors"

extensions = ["myst_nb", "sphinx.ext.autodoc"]
root_doc = "docs/index"
include_patterns = ["docs/**", "notebooks/*.ipynb"]

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 2
html_math_renderer = "mathml"
nb_execution_mode = "force"
nb_execution_excludepatterns = os.environ.get("MINIMHA_EXECUTED", "").split()  # already run
nb_execution_raise_on_error = True
nb_execution_timeout = 300
nb_output_stderr = "remove"  # "compiling kernels" names a folder of this machine

highlight_language = "none"
html_theme = "furo"
html_static_path = ["static"]
html_extra_path = ["front"]  # the site's address leads to docs/index.html
html_css_files = ["site.css"]
html_title = "minimha"
autodoc_member_order = "bysource"
autodoc_typehints = "none"


PYPROJECT = Path(__file__).parents[1] / "pyproject.toml"
ADDRESS = tomllib.loads(PYPROJECT.read_text(encoding="utf-8"))["project"]["urls"]["Documentation"]

ALSO_TEX = {  # TeX that docutils does not read or space well, and the same so that it does
    r"\\(tfrac|frac)\s*(\d)(\d)": r"\\\1{\2}{\3}",
    r"\\dots(?![a-z])": r"\\ldots",
    r"(\\(?:tilde|hat) \w)(?=[_^])": r"\1{}",  # beside the accented letter, not below it
    r"\\([bB]igg?)(?=[(\[])": r"\\\1l",
    r"\\([bB]igg?)(?=[)\]])": r"\\\1r",
    r"(?<=[\w)}])\s*(?=\\(ln|log|tanh|sin|cos)\b)": r"\\,",
    r"\\(ln|log|tanh|sin|cos)(\^\w)?\s*(?=\w|\\(?!big))": r"\\\1\2\\,",
}


def mathml(site, node) -> None:
    """Write a formula as MathML, which browsers draw by themselves: no script and no network."""
    tex = node.astext().strip()
    for pattern, same in ALSO_TEX.items():
        tex = re.sub(pattern, same, tex)
    try:
        site.body.append(latex2mathml.tex2mathml(tex, as_block=isinstance(node, nodes.math_block)))
    except MathError as error:
        logging.getLogger(__name__).warning("%s in %s", error, tex, location=node)
    raise nodes.SkipNode


def stay_here(app, doctree, page) -> None:
    """Let links with the address of the site lead to this copy of it, wherever it is."""
    for link in doctree.findall(nodes.reference):
        if link.get("refuri", "").startswith(ADDRESS):
            link["refuri"] = "../" * page.count("/") + link["refuri"].removeprefix(ADDRESS)


def setup(app) -> None:
    app.connect("doctree-resolved", stay_here)
    app.add_html_math_renderer("mathml", (mathml, None), (mathml, None))
    app.connect("autodoc-process-docstring", as_written)


def as_written(app, what, name, subject, options, lines) -> None:
    """Show docstrings as they are written: formulas and columns aligned, as in help()."""
    lines[:] = ["::", "", *(f"    {line}" for line in lines)]
