"""Tutorials as notebooks, made of the same Markdown as their pages: prose, sessions in Python, files and commands
become cells, and what is shown as output becomes the output of its cell."""

from __future__ import annotations

import doctest
import hashlib
import json
import re
import shlex
from collections.abc import Iterator
from typing import Any, NamedTuple

from markup import FENCE, is_relative

FILE = re.compile(r"# ([\w./-]+\.py)\n")
LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)")


class Block(NamedTuple):
    """A part of a page: prose, where `language` is empty, or a block of code; ? is one that does not say which."""

    language: str
    text: str


def blocks(page: str) -> Iterator[Block]:
    """The parts of a page, in order.

    >>> list(blocks("# T\\n\\n```console\\n$ ls\\n```\\n"))
    [Block(language='', text='# T'), Block(language='console', text='$ ls\\n')]
    """
    prose: list[str] = []
    code: list[str] | None = None
    language = ""
    for line in page.splitlines():
        mark = FENCE.match(line)
        if mark and code is None:
            if text := "\n".join(prose).strip():
                yield Block("", text)
            prose, code, language = [], [], line.strip().lstrip("`~")
        elif mark and code is not None:
            yield Block(language or "?", "".join(f"{each}\n" for each in code))
            code = None
        elif code is None:
            prose.append(line)
        else:
            code.append(line)
    if text := "\n".join(prose).strip():
        yield Block("", text)


def commands(text: str) -> list[list[str]]:
    """The commands of a console's block, as lists of words.

    >>> commands("$ idiolect run --lr 0.1        # words\\ndone\\n")
    [['idiolect', 'run', '--lr', '0.1']]
    """
    return [shlex.split(line[2:], comments=True) for line in text.splitlines() if line.startswith("$ ")]


def file_name(block: Block) -> str:
    """The name of the file that a block of Python shows, which its first line says; empty if it shows none.

    >>> file_name(Block("python", "# own.py\\nx = 1\\n")), file_name(Block("python", ">>> 1\\n1\\n"))
    ('own.py', '')
    """
    match = FILE.match(block.text)
    return match[1] if match and block.language == "python" else ""


def cells(block: Block) -> Iterator[dict[str, Any]]:
    """The cells that a block becomes."""
    if not block.language:
        # The pages that a tutorial links to are not beside a notebook.
        text = LINK.sub(lambda match: match[1] if is_relative(match[2]) or match[2][0] == "#" else match[0], block.text)
        yield {"cell_type": "markdown", "metadata": {}, "source": text}
    elif name := file_name(block):
        yield code_cell(f"%%writefile {name}\n{block.text.partition(chr(10))[2].lstrip()}")
    elif block.language == "python":
        for example in doctest.DocTestParser().get_examples(block.text):
            shown = example.want if example.exc_msg is None else ""
            yield code_cell(re.sub(r" {2,}# doctest:.*", "", example.source), shown, example.exc_msg is not None)
    elif block.language == "console":
        lines = [line[2:] for line in block.text.splitlines() if line.startswith("$ ")]
        yield code_cell("\n".join(f"!{line}" for line in lines))
    else:
        yield {"cell_type": "markdown", "metadata": {}, "source": f"```{block.language}\n{block.text}```"}


def code_cell(source: str, shown: str = "", fails: bool = False) -> dict[str, Any]:
    """A cell of code with what it shows; one that is meant to fail does not stop the notebook."""
    data = {"text/plain": shown}
    outputs = [{"output_type": "execute_result", "execution_count": None, "metadata": {}, "data": data}]
    return {
        "cell_type": "code",
        "execution_count": None,
        "metadata": {"tags": ["raises-exception"]} if fails else {},
        "outputs": outputs if shown else [],
        "source": source.rstrip("\n"),
    }


def notebook(page: str) -> str:
    """A page as a notebook (nbformat 4.5)."""
    found = [cell for block in blocks(page) for cell in cells(block)]
    for place, cell in enumerate(found):
        cell["id"] = hashlib.sha256(f"{place} {cell['source']}".encode()).hexdigest()[:12]
    about = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    return json.dumps({"cells": found, "metadata": about, "nbformat": 4, "nbformat_minor": 5}, indent=1) + "\n"
