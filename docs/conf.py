"""Sphinx settings; ``make docs`` builds the pages and runs the tutorials."""

import importlib.util
import os
import sys

import bactrian

project = "bactrian"
author = "the bactrian developers"
project_copyright = author
version = release = bactrian.__version__

sys.path.insert(0, os.path.dirname(__file__))

extensions = [
    "building",
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
]
exclude_patterns = ["_build", "_templates", "notebooks"]
templates_path = ["_templates"]

smartquotes_action = "qe"  # options keep their two hyphens

html_theme = "furo"
html_title = f"bactrian {release}"
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_math_renderer = "mathml"  # drawn by the browser itself, without a network

myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence", "deflist"]
myst_heading_anchors = 3

# Tutorials run at every build, each in an empty folder, and an exception fails the build.
nb_execution_mode = "force"
nb_execution_raise_on_error = True
nb_execution_in_temp = True
nb_execution_timeout = 600  # seconds a cell; on an idle machine the slowest takes about ten
# Progress bars and warnings of the tutorials are part of the output on purpose; merge what belongs together.
nb_merge_streams = True
# The kernel is whatever Python runs the build; user start-up files must not change the pages.
os.environ.setdefault("IPYTHONDIR", os.path.join(os.path.dirname(__file__), os.pardir, "build", "ipython"))

autodoc_typehints = "none"  # numpydoc's sections say it in words
autodoc_preserve_defaults = True  # as they stand in the code
maximum_signature_line_length = 80  # longer ones have a parameter per line
autosummary_generate = True
numpydoc_show_class_members = False
# scikit-learn's generated methods refer to pages of its own.
autodoc_inherit_docstrings = True
# ``make docs`` works without PyTorch; with ``-t without_torch`` it does as if PyTorch were not there.
if tags.has("without_torch") or importlib.util.find_spec("torch") is None:  # noqa: F821
    autodoc_mock_imports = ["torch"]
