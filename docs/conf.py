"""How the documentation is built: sphinx-build -W docs docs/_build."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import all_messages  # noqa: E402
import options_page  # noqa: E402

from robomimic_ddp import __version__  # noqa: E402

project = "robomimic-ddp"
author = "robomimic-ddp authors"
release = __version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
default_role = "code"  # docstrings have single backticks
add_module_names = False
html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["pages.css", "pictures.css"]
html_js_files = ["tables.js"]
html_title = f"robomimic-ddp {__version__}"
myst_heading_anchors = 3
exclude_patterns = ["_build"]
html_show_copyright = False


def setup(_: object) -> None:
    """Writes the pages of options and of messages from the code, so that they cannot go stale."""
    for name, text in (("options.md", options_page.page()), ("messages.md", all_messages.page())):
        page = Path(__file__).parent / name
        if not page.is_file() or page.read_text(encoding="utf-8") != text:
            page.write_text(text, encoding="utf-8")
