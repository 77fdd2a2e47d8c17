"""From a text to its words."""

from __future__ import annotations

import re

_RULES = tuple(
    (re.compile(pattern), put)
    for pattern, put in (
        (r"'", " '  "), (r'"', ""), (r"\.", " . "), (r"<br />", " "), (r",", " , "), (r"\(", " ( "), (r"\)", " ) "),
        (r"!", " ! "), (r"\?", " ? "), (r";", " "), (r":", " "), (r"\s+", " "),
    )
)  # fmt: skip


def tokenise(text: str) -> list[str]:
    """Words in small letters, with marks as words of their own: the rules of torchtext's basic_english.

    >>> tokenise('Fears for T&N pension (Reuters): "no."')
    ['fears', 'for', 't&n', 'pension', '(', 'reuters', ')', 'no', '.']
    """
    text = text.lower()
    for pattern, put in _RULES:
        text = pattern.sub(put, text)
    return text.split()
