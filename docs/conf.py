"""How `make docs` turns these pages and the docstrings into a site."""

import json
import re

import cbml

project = "cbml"
version = release = cbml.__version__
html_title = "cbml"
html_theme = "furo"
html_copy_source = False
html_show_sphinx = False
copyright = "the contributors of cbml, MIT license"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown", ".ipynb": "markdown"}
myst_heading_anchors = 3
suppress_warnings = ["misc.highlighting_failure"]  # "…" in JSON is meant

default_role = "code"  # a docstring's `name` is a name, not a reference
autodoc_typehints = "description"  # our `Args:` say what an argument means, the signature its type
autodoc_typehints_description_target = "documented"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True}
autodoc_preserve_defaults = True

_CODE = re.compile(r"(`[^`]*`)")


def _as_written(app, what, name, obj, options, lines):  # type: ignore[no-untyped-def]
    """Our docstrings are plain text: stars, bars and indented equations mean what they look like.

    A paragraph that ends in a colon before an indented one introduces an equation or a program,
    kept as it is; elsewhere the marks of reStructuredText are escaped outside of `code`.
    """
    del app, what, name, obj, options
    shown: list[str] = []
    literal = None  # indentation of the paragraph whose equation is being read
    for number, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        if literal is not None and line.strip() and indent <= literal:
            literal = None
        if literal is None and line.strip():
            after = [other for other in lines[number + 1 : number + 3] if other.strip()]
            opens = line.rstrip().endswith(":") and lines[number + 1 : number + 2] == [""]
            if opens and after and len(after[0]) - len(after[0].lstrip()) > indent:
                literal = indent
                line += ":"
            parts = _CODE.split(line)
            parts[::2] = [re.sub(r"([*|\\]|_\b)", r"\\\1", part) for part in parts[::2]]
            line = "".join(parts)
        shown.append(line)
    lines[:] = shown


def _records_inside(app, name, source):  # type: ignore[no-untyped-def]
    """The records' own page lies outside of docs/; the site shows it as records.md."""
    del app, name
    source[0] = source[0].replace("](../results/README.md)", "](records.md)")


def _notebook_as_page(app, name, source):  # type: ignore[no-untyped-def]
    """A notebook is shown as its text and its programs; its outputs are not stored."""
    if not str(app.env.doc2path(name)).endswith(".ipynb"):
        return
    texts = [
        (cell["cell_type"], "".join(cell["source"])) for cell in json.loads(source[0])["cells"]
    ]
    pages = [text if kind == "markdown" else f"```python\n{text}\n```" for kind, text in texts]
    source[0] = "\n\n".join(pages)


def setup(app):  # type: ignore[no-untyped-def]
    """Sphinx calls this; docstrings are made ready before napoleon reads them."""
    app.connect("source-read", _notebook_as_page)
    app.connect("source-read", _records_inside)
    app.connect("autodoc-process-docstring", _as_written, priority=400)
