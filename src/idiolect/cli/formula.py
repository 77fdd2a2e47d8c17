"""Docstrings for the terminal: their mathematics, which is written in LaTeX, in plain signs."""

from __future__ import annotations

import re

PAIRS = """
leftarrow ← gets ← rightarrow → to → mapsto → nabla ∇ partial ∂ sum Σ prod Π in ∈ notin ∉ cdot · odot ⊙ times × circ ∘
le ≤ leq ≤ ge ≥ geq ≥ ne ≠ neq ≠ approx ≈ sim ~ pm ± infty ∞ sqrt √ ell l mid | cup ∪ cap ∩ subset ⊂ top ᵀ langle ⟨
rangle ⟩ forall ∀ emptyset ∅ lfloor ⌊ rfloor ⌋ lceil ⌈ rceil ⌉ lVert ‖ rVert ‖ Vert ‖ vert | dots ...
ldots ... cdots ...
alpha α beta β gamma γ delta δ epsilon ε varepsilon ε zeta ζ eta η theta θ kappa κ lambda λ mu μ nu ν xi ξ pi π rho ρ
sigma σ tau τ phi φ varphi φ chi χ psi ψ omega ω Gamma Γ Delta Δ Theta Θ Lambda Λ Sigma Σ Phi Φ Psi Ψ Omega Ω
"""
SILENT = """
left right bigl bigr Bigl Bigr biggl biggr big Big limits textstyle displaystyle quad qquad
"""
SIGNS = dict(zip(PAIRS.split()[::2], PAIRS.split()[1::2], strict=True)) | dict.fromkeys(SILENT.split(), "")
_INNER = r"\{([^{}]*)\}"


def readable(docstring: str) -> str:
    r"""A docstring as plain text: every paragraph one line, formulas and lists indented lines of their own.

    >>> formula = r".. math:: v \leftarrow v - \eta \frac{1}{n + 1} \|v - w^{t+1}\|^2"
    >>> print(readable("Each client pulls\nits model :math:`v`,\n\n" + formula))
    Each client pulls its model v,
    <BLANKLINE>
        v ← v - η 1/(n + 1) ‖v - w^(t+1)‖²
    """
    return "\n\n".join(_paragraph(paragraph) for paragraph in re.split(r"\n\s*\n", docstring.strip()))


def _paragraph(text: str) -> str:
    if text.startswith(".. math::"):
        lines = plain_signs(text.removeprefix(".. math::")).splitlines()
        return "\n".join(f"    {line.strip()}" for line in lines if line.strip())
    text = re.sub(r":math:`([^`]*)`", lambda match: plain_signs(match[1]), text).replace("`", "")
    return text if re.search(r"^\s*(-|\*|\d+\.|>>>) ", text) else " ".join(text.split())


def plain_signs(formula: str) -> str:
    r"""A formula in plain signs.

    >>> plain_signs(r"\lambda_c = \tfrac{T_c}{T_c + T}, \quad h_{l,u} \in \mathbb{R}^{d}")
    'λ_c = T_c/(T_c + T),   h_(l,u) ∈ R^d'
    """
    text = formula.replace(r"\|", "‖").replace(r"\{", "⦃").replace(r"\}", "⦄").replace(r"\\", "\n").replace("&", "")
    text = re.sub(r"\\[,;:! ]", " ", text)
    before = ""
    while before != text:  # from the innermost braces outwards
        before = text
        text = re.sub(rf"\\(?:bar|overline)\s*{_INNER}", lambda match: "".join(c + "\u0304" for c in match[1]), text)
        text = re.sub(rf"\\(?:hat|tilde)\s*{_INNER}", lambda match: match[1] + "\u0302", text)
        text = re.sub(rf"\\[td]?frac\s*{_INNER}\s*{_INNER}", lambda match: f"{_term(match[1])}/{_term(match[2])}", text)
        text = re.sub(rf"([_^]){_INNER}", lambda match: match[1] + _term(match[2], also=","), text)
        text = re.sub(rf"\\(?:text|math[a-z]+|operatorname|boldsymbol|bm)\s*{_INNER}", r"\1", text)
    text = re.sub(r"\\([A-Za-z]+) ?(?![A-Za-z])", lambda match: _sign(match), text)
    text = re.sub(r"\\([A-Za-z]+)", lambda match: SIGNS.get(match[1], match[1]), text)
    for digit, raised in zip("0123", "⁰¹²³", strict=True):
        text = re.sub(rf"\^{digit}(?!\w|\.\d)", raised, text)
    return text.replace("{", "").replace("}", "").replace("⦃", "{").replace("⦄", "}")


def _sign(match: re.Match[str]) -> str:
    """A command's sign; the blank after it stays where the source has one."""
    sign = SIGNS.get(match[1], match[1])
    return sign + (" " if match[0].endswith(" ") and sign.strip() else "")


def _term(text: str, also: str = "") -> str:
    """In brackets unless it is one thing."""
    text = text.strip()
    return f"({text})" if re.search(rf"[-+ *{also}]", text) else text
