"""How Sphinx builds the documentation; the pages about components and commands are made from the package itself."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import fedskew  # noqa: E402

project = "fedskew"
author = "The fedskew founders"
release = version = fedskew.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 4  # a heading is found by the anchor that hosts of Markdown pages give it
nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 120
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
smartquotes = False  # two hyphens are two hyphens
html_theme = "furo"
html_title = f"fedskew {release}"
html_show_sphinx = False
html_extra_path = ["llms.txt", "schemas.json"]


def setup(app):
    """Make the pages of the reference before Sphinx looks for pages."""
    from reference_pages import write_reference

    write_reference(HERE / "reference")
