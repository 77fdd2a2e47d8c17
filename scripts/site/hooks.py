"""What MkDocs calls while it builds the site (see mkdocs.yml)."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

sys.path.insert(0, str(Path(__file__).parent))
import markup
import site_pages


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Write the pages, and the navigation to them."""
    pages, site = site_pages.build()
    config.extra["pages"] = pages
    config.nav = site_pages.navigation(config.nav or [], site)
    config.mdx_configs.setdefault("toc", {})["slugify"] = markup.slugify
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """The pages take the place of the documents that they were written from."""
    for file in list(files.documentation_pages()):
        files.remove(file)
    for uri, text in config.extra.pop("pages").items():
        files.append(File.generated(config, uri, content=text))
    for uri, text in site_pages.notebooks().items():
        files.append(File.generated(config, uri, content=text))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Sessions in Python are coloured as such."""
    return re.sub(r"^(\s*)```python\n(?=\s*>>>)", r"\1```pycon\n", markdown, flags=re.MULTILINE)


def on_page_content(html: str, **_: Any) -> str:
    """Formulas are shown without a script."""
    return markup.show_formulas(html)
