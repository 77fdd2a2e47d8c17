"""The pages of the site, from the documents of the repository: README.md is the start page, long documents are split,
methods and public names have pages that are written here, and whatever file a page links to is a page as well."""

from __future__ import annotations

import importlib
import json
import posixpath
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import method_pages
from markup import headings, is_relative, replace_links, slugify, split
from notebooks import notebook

import idiolect

ROOT = Path(__file__).resolve().parents[2]
OTHERS = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
SPLIT = ("data.md", "design.md", "guide.md", "reproductions.md", "results.md")
ROOMS = """
advice analysis comparison contract data engines flower kernels models report reproductions runs task testing tuning
"""
LANGUAGES = {".py": "python", ".yaml": "yaml", ".toml": "toml", ".json": "json", ".md": "markdown"}
Place = tuple[str, str]
"""A page and an anchor on it; an empty anchor is its beginning."""


class LinkError(Exception):
    """Links that lead nowhere."""


def documents() -> dict[str, str]:
    """The written documents, by their path in the repository."""
    written = [*OTHERS, *(path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md")))]
    return {path: (ROOT / path).read_text(encoding="utf-8") for path in written}


def uri_of(path: str) -> str:
    """The page that a document becomes."""
    return OTHERS.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else f"files/{path}")


class Site:
    """Pages and where links into documents lead."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        """Lay out the pages of documents, which are given by their path in the repository."""
        self.sources: dict[str, tuple[str, str]] = {}  # by page: the document that its links start from, and its text
        self.places: dict[Place, Place] = {}  # by document and anchor: page and anchor
        self.parts: dict[str, list[tuple[str, str]]] = {}  # of a split page: titles and pages
        self.wrong: list[str] = []
        for path, text in texts.items():
            self.add(path, text)

    def add(self, path: str, text: str) -> None:
        """Lay out a document."""
        uri = uri_of(path)
        if uri == "deviations.md":
            text = self.add_deviations(path, text)
        pieces = split(text) if uri in SPLIT else [text]
        self.places[path, ""] = (uri, "")
        uris = [uri]
        for piece in pieces[1:]:
            title = headings(piece)[0].text
            part = f"{uri.removesuffix('.md')}/{slugify(title)}.md"
            self.parts.setdefault(uri, []).append((title, part))
            uris.append(part)
        anchors = iter(headings(text))
        for part, piece in zip(uris, pieces, strict=True):
            for index, own in enumerate(headings(piece)):
                self.places[path, next(anchors).anchor] = (part, own.anchor if index or part == uri else "")
            self.sources[part] = (path, piece)

    def add_deviations(self, path: str, text: str) -> str:
        """Every method's paragraph is on its own page: what is left, and where the paragraphs are."""
        found = [heading for heading in headings(text) if heading.level == 3]
        listing = []
        for heading in found:
            names = heading.text.split("`")[1::2]
            self.places[path, heading.anchor] = (f"methods/{names[0]}.md", "deviations-from-the-paper")
            listing += [f"- [`{name}`](methods/{name}.md#deviations-from-the-paper)" for name in names]
        head = "\n".join(text.split("\n")[: found[0].line])
        return f"{head}\nEach method's page has its paragraph:\n\n" + "\n".join(listing) + "\n"

    def resolve(self, path: str, target: str) -> str | Place:
        """Where a link on a document leads: a page, or a file among the documents."""
        if not is_relative(target) and not target.startswith("#"):
            return target
        file, _, anchor = target.partition("#")
        file = posixpath.normpath(posixpath.join(posixpath.dirname(path), file)) if file else path
        if (file, "") in self.places:
            if (place := self.places.get((file, anchor))) is None:
                self.wrong.append(f"{path}: {target} has no such heading")
                return self.places[file, ""]
            return place
        if not (ROOT / file).is_file():
            self.wrong.append(f"{path}: {target} does not exist")
            return target
        if file.startswith("docs/"):
            return file.removeprefix("docs/"), ""
        self.add(file, show_file(file))
        return self.places[file, ""]

    def pages(self) -> dict[str, str]:
        """All pages with their links, once every link has its page."""
        done: dict[str, str] = {}
        while waiting := [uri for uri in self.sources if uri not in done]:
            for uri in waiting:
                done[uri] = self.link(uri)
        if self.wrong:
            raise LinkError("\n".join(self.wrong))
        for uri, parts in self.parts.items():
            lines = [f"- [{title}]({relative(uri, part)})" for title, part in parts]
            done[uri] = done[uri].rstrip() + "\n\n" + "\n".join(lines) + "\n"
        return done

    def link(self, uri: str) -> str:
        """A page, its links changed to those of the site."""
        path, text = self.sources[uri]

        def change(target: str) -> str:
            found = self.resolve(path, target)
            if isinstance(found, str):
                return found
            page, anchor = found
            if page == uri and anchor:
                return f"#{anchor}"
            return relative(uri, page) + (f"#{anchor}" if anchor else "")

        return replace_links(text, change)


def tutorials() -> dict[str, str]:
    """The tutorials, by their path in the repository."""
    index = "docs/tutorials/index.md"
    return {path: text for path, text in documents().items() if path.startswith("docs/tutorials/") and path != index}


def notebooks() -> dict[str, str]:
    """Every tutorial as a notebook, by its place on the site."""
    return {f"{uri_of(path).removesuffix('.md')}.ipynb": notebook(text) for path, text in tutorials().items()}


def offer_notebook(uri: str, text: str) -> str:
    """A tutorial's page with the link to its notebook below the title."""
    title, _, rest = text.partition("\n")
    return f"{title}\n\n[This page as a notebook]({Path(uri).stem}.ipynb){{: download }}\n{rest}"


def relative(start: str, end: str) -> str:
    """A link from one page to another."""
    return posixpath.relpath(end, posixpath.dirname(start) or ".")


def show_file(path: str) -> str:
    """A file of the repository as a page; one in Markdown is a page already, and a notebook is its cells."""
    text = (ROOT / path).read_text(encoding="utf-8")
    suffix = Path(path).suffix
    if suffix == ".ipynb":
        cells = [("".join(cell["source"]), cell["cell_type"] == "code") for cell in json.loads(text)["cells"]]
        return "\n\n".join(f"````python\n{source}\n````" if is_code else source for source, is_code in cells) + "\n"
    return text if suffix == ".md" else f"# {path}\n\n````{LANGUAGES.get(suffix, 'text')}\n{text}````\n"


def public_names(room: str) -> list[str]:
    """The public names of a package."""
    package: Any = importlib.import_module(f"idiolect.{room}") if room else idiolect
    return list(package.__all__)


def api_pages() -> dict[str, str]:
    """A page for the names at the top, and one for every package that has public names."""
    top = set(idiolect.__all__)
    pages = {"api/idiolect.md": api_page("", public_names(""), ())}
    for room in ROOMS.split():
        names = public_names(room)
        again = [name for name in names if name in top and getattr(idiolect, name) is room_value(room, name)]
        pages[f"api/{room}.md"] = api_page(room, [name for name in names if name not in again], again)
    return pages


def room_value(room: str, name: str) -> Any:
    """A public name's value."""
    return getattr(importlib.import_module(f"idiolect.{room}"), name)


def api_page(room: str, names: Iterable[str], again: Iterable[str]) -> str:
    """The page of a package: what it is, and each of its names."""
    package = f"idiolect.{room}" if room else "idiolect"
    text = f"# {package}\n\n::: {package}\n    options:\n      members: false\n      show_root_heading: false\n\n"
    if listed := ", ".join(f"[`{name}`](idiolect.md#idiolect.{name})" for name in again):
        text += f"Also here, as `idiolect.NAME`: {listed}.\n\n"
    return text + "".join(f"::: {package}.{name}\n\n" for name in names)


def build() -> tuple[dict[str, str], Site]:
    """All pages by their place, and how they are laid out."""
    site = Site(documents())
    for uri, text in method_pages.pages().items():
        site.add(f"docs/{uri}", text)
    pages = site.pages()
    for path in tutorials():
        pages[uri_of(path)] = offer_notebook(uri_of(path), pages[uri_of(path)])
    return pages | api_pages(), site


def navigation(entries: Iterable[Any], site: Site) -> list[Any]:
    """The navigation of mkdocs.yml: a split document with its parts, and `methods/` and `api/` with theirs."""
    found: list[Any] = []
    for entry in entries:
        ((title, target),) = entry.items() if isinstance(entry, dict) else ((None, entry),)
        if isinstance(target, list):
            found.append({title: navigation(target, site)})
        elif target == "methods/":
            for family, members in method_pages.groups().items():
                found.append({family[0].upper() + family[1:]: [{name: f"methods/{name}.md"} for name, *_ in members]})
        elif target == "api/":
            found += [{"idiolect": "api/idiolect.md"}, *({room: f"api/{room}.md"} for room in ROOMS.split())]
        elif target in site.parts:
            found.append({title: [target, *({part: uri} for part, uri in site.parts[target])]})
        else:
            found.append(entry)
    return found
