"""The site: built from the root of the clone, so that chapters are pages.

.venv/bin/python -m sphinx -c docs . build/site
"""

from __future__ import annotations

project = "minimha"
author = "the minimha authors"
project_copyright = "2026, the minimha authors"

extensions = ["myst_nb", "sphinx.ext.autodoc"]
root_doc = "docs/index"
include_patterns = ["docs/**", "notebooks/*.ipynb"]

myst_enable_extensions = ["amsmath", "dollarmath"]
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_timeout = 120

highlight_language = "none"
html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_title = "minimha"
autodoc_member_order = "bysource"
autodoc_typehints = "none"


def setup(app) -> None:
    """Show docstrings as they are written: formulas and columns aligned, as in help()."""

    def as_written(app, what, name, subject, options, lines) -> None:
        lines[:] = ["::", "", *(f"    {line}" for line in lines)]

    app.connect("autodoc-process-docstring", as_written)
