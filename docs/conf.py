"""The documentation site: `make docs`. Sources are the pages of the repository, which are read on GitHub, too."""

import os
import re
import sys
from pathlib import Path
from typing import Any

import django
from docutils import nodes
from sphinx.addnodes import index, pending_xref
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
django.setup()

import django_ojs_unique  # noqa: E402

project = "django-ojs-unique"
release = django_ojs_unique.__version__
html_title = f"{project} {release}"
html_theme = "furo"
html_copy_source = False
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["site.js"]
html_favicon = "static/icon.svg"
html_search_scorer = str(ROOT / "docs/scorer.js")
smartquotes = False  # `--drain` is no dash

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
root_doc = "docs/index"
include_patterns = ["docs/*.md", "README.md", "CHANGELOG.md", "CONTRIBUTING.md"]
exclude_patterns = [".*", "build"]

# Output is not copied: neither a block of it, nor the lines below a prompt.
copybutton_selector = "div:not(.highlight-text) > div.highlight > pre"
copybutton_prompt_text = "$ "

myst_heading_anchors = 4  # the same names as GitHub gives them

default_role = "py:obj"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
nitpick_ignore_regex = [
    ("py:obj", ".*"),  # a word in single back-ticks, which may be no name
    ("py:.*", r"(?!django_ojs_unique\.).*"),  # what others document
    # What only we handle, and type variables.
    ("py:.*", r".*\.(registry\.(Definition|SupportsHeal)|execution\.finalize\.Finalized|summary\.Meter)"),
    ("py:.*", r".*\.(results\.JobT|row\.JobRow|[A-Z])"),
]

linkcheck_timeout = 10
linkcheck_retries = 2
# The placeholders of examples.
linkcheck_ignore = [r"https?://(\w+\.)?example\.(com|org)", r"http://(127\.0\.0\.1|localhost)"]

PICTURE = re.compile(
    r'<picture>\s*<source [^>]*srcset="(.+?)">\s*<img alt="(.+?)" src="(.+?)">\s*</picture>', re.DOTALL
)


class Pictures(SphinxTransform):
    """Make GitHub's pictures for light and dark pages images that Sphinx knows, so that it looks for the files."""

    default_priority = 100

    def apply(self, **kwargs: Any) -> None:
        for raw in list(self.document.findall(nodes.raw)):
            if picture := PICTURE.fullmatch(raw.astext().strip()):
                dark, alt, light = picture.groups()
                images = [("only-light", light), ("only-dark", dark)]
                raw.replace_self([nodes.image(uri=uri, alt=alt, classes=[shown]) for shown, uri in images])


class Terms(SphinxTransform):
    """Put the terms of the glossary into the index, which the search knows, and let links lead to them."""

    default_priority = 100

    def apply(self, **kwargs: Any) -> None:
        if self.env.docname == "docs/glossary":
            for row in list(self.document.findall(nodes.row))[1:]:
                cell, term = row[0], row[0].astext()
                anchor = nodes.make_id(f"term-{term}")
                cell.insert(0, index(entries=[("single", term, anchor, "main", None)]))
                cell["ids"].append(anchor)


class Folders(SphinxTransform):
    """Leave the text of a link to a folder, which is a page on GitHub only."""

    default_priority = 100

    def apply(self, **kwargs: Any) -> None:
        here = self.env.doc2path(self.env.docname).parent
        for link in list(self.document.findall(pending_xref)):
            if link["reftype"] == "myst" and (here / link["reftarget"]).is_dir():
                link.replace_self(link.children)


def add_contents(app: Sphinx, page: str, source: list[str]) -> None:
    """Make each list of the index a part of the table of contents: the directive would be code on GitHub."""
    if page == root_doc:
        for part in source[0].split("\n## ")[1:]:
            pages = re.findall(r"\]\(([^)#:]+)\.md\)", part)
            heading = part.partition("\n")[0]
            source[0] += "\n".join(["", "```{toctree}", ":hidden:", f":caption: {heading}", "", *pages, "```", ""])


def setup(app: Sphinx) -> None:
    app.add_transform(Folders)
    app.add_transform(Pictures)
    app.add_transform(Terms)
    app.connect("source-read", add_contents)
