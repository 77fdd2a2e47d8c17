"""Markdown as the documents are written: headings and their anchors, links, parts; docstrings as Markdown; formulas as
MathML, which browsers show without a script."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from html import unescape
from typing import NamedTuple

FENCE = re.compile(r"^\s*(```|~~~)")
LINK = re.compile(r"(`+)(?:(?!\1).)+?\1|(?P<head>\]\()(?P<target>[^)\s]+)(?=[)\s])", re.DOTALL)
SESSION = re.compile(r"^( *)>>> .*(?:\n.*\S.*)*", re.MULTILINE)
FORMULA = re.compile(r'<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\1>', re.DOTALL)


class Heading(NamedTuple):
    """A heading: its line, its level, and what a link to it is called."""

    line: int
    level: int
    text: str
    anchor: str


def slugify(text: str, separator: str = "-") -> str:
    """What a heading is called in links, by GitHub's rule.

    >>> slugify("FedAlt and FedSim (`fedalt`, `fedsim`)"), slugify("Own server_lr")
    ('fedalt-and-fedsim-fedalt-fedsim', 'own-server_lr')
    """
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", separator)


def outside_code(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a page that are not in a block of code, with their numbers."""
    fence = ""
    for number, line in enumerate(text.splitlines()):
        mark = FENCE.match(line)
        if mark and (not fence or mark[1] == fence):
            fence = "" if fence else mark[1]
        elif not fence:
            yield number, line


def headings(text: str) -> list[Heading]:
    """The headings of a page; of equal ones the later are numbered, as on GitHub."""
    found: list[Heading] = []
    seen: dict[str, int] = {}
    for number, line in outside_code(text):
        if match := re.match(r"(#{1,6}) +(.*?)\s*$", line):
            anchor = slugify(re.sub(r"\]\([^)]*\)|[\[\]`*]", "", match[2]))
            count = seen.get(anchor, 0)
            seen[anchor] = count + 1
            found.append(Heading(number, len(match[1]), match[2], f"{anchor}-{count}" if count else anchor))
    return found


def is_relative(target: str) -> bool:
    """Whether a link leads to a file of the repository."""
    return not re.match(r"[a-z]+:|#", target)


def links(text: str) -> list[str]:
    """What a page links to, code apart."""
    prose = "\n".join(line for _, line in outside_code(text))
    return [match["target"] for match in LINK.finditer(prose) if match["target"]]


def replace_links(text: str, change: Callable[[str], str]) -> str:
    """A page with every link changed."""
    lines = text.split("\n")
    inside = dict(outside_code(text))
    kept = list(inside.items())
    prose = "\n".join(line for _, line in kept)

    def replace(match: re.Match[str]) -> str:
        return f"{match['head']}{change(match['target'])}" if match["target"] else match[0]

    for (number, _), line in zip(kept, LINK.sub(replace, prose).split("\n"), strict=True):
        lines[number] = line
    return "\n".join(lines)


def split(text: str) -> list[str]:
    """A page's beginning, and its parts under headings of the second level, each as a page."""
    lines = text.split("\n")
    starts = [heading.line for heading in headings(text) if heading.level == 2]
    pieces = [lines[start:end] for start, end in zip([0, *starts], [*starts, len(lines)], strict=True)]
    raised = {heading.line for heading in headings(text)}
    parts, number = [], 0
    for index, piece in enumerate(pieces):
        moved = [
            line[1:] if index and number + offset in raised and line.startswith("##") else line
            for offset, line in enumerate(piece)
        ]
        parts.append("\n".join(moved).strip() + "\n")
        number += len(piece)
    return parts


def from_docstring(text: str) -> str:
    r"""A docstring, whose formulas are written for Sphinx, as Markdown, and its sessions in Python as blocks of code.

    >>> from_docstring("One:\n\n>>> 1 < 2\nTrue\n\nEnd.")
    'One:\n\n```pycon\n>>> 1 < 2\nTrue\n```\n\nEnd.'
    >>> print(from_docstring("Pulls :math:`v`,\n\n.. math:: v = 1,\n    w = 2\n\nby ``lam``."))
    Pulls $v$,
    <BLANKLINE>
    $$
    v = 1,
        w = 2
    $$
    <BLANKLINE>
    by `lam`.
    """
    text = re.sub(r":math:`([^`]*)`", lambda match: f"${' '.join(match[1].split())}$", text)
    text = re.sub(
        r"^( *)\.\. math::[ \n]*(.*?)(?=\n[ ]*\n|\Z)",
        lambda match: f"{match[1]}$$\n{match[1]}{match[2].strip()}\n{match[1]}$$",
        text,
        flags=re.DOTALL | re.MULTILINE,
    )
    text = re.sub(r":\w+:`~?([^`]*)`", r"`\1`", text)
    text = re.sub(r"``([^`\n]+)``", r"`\1`", text)
    return SESSION.sub(lambda match: f"{match[1]}```pycon\n{match[0]}\n{match[1]}```", text)


def show_formulas(html: str) -> str:
    """A page's HTML with its formulas as MathML."""
    from latex2mathml.converter import convert  # which only the site needs

    def show(match: re.Match[str]) -> str:
        latex = re.sub(r"\\[bB]ig+[lr]?(?![a-z])", "", unescape(match[2]))
        latex = re.sub(r"\\arg(?![a-z])", r"\\operatorname{arg}", latex)
        return convert(" ".join(latex.split()), display="block" if match[1] == "div" else "inline")

    return FORMULA.sub(show, html)
