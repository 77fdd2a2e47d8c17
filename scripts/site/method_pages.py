"""A page for every method, from the method itself, docs/deviations.md, docs/costs.json and the committed results."""

from __future__ import annotations

import inspect
import json
import re
from functools import cache
from pathlib import Path
from typing import Any

from markup import from_docstring, headings, is_relative, replace_links

from idiolect.advice import RULES
from idiolect.advice.presets import read_presets
from idiolect.cli.methods import FIVE, citation, example, group_methods, list_methods, needs, paper_of, sends
from idiolect.cli.options import describe_limits
from idiolect.comparison.statistics import interval
from idiolect.contract import Method, Wrapper, methods
from idiolect.core.expressions import write
from idiolect.core.options import options_of
from idiolect.core.tables import escape_markdown
from idiolect.reproductions import Claim, read_claims
from idiolect.reproductions.ledger import find_result, row, show, write_rows

ROOT = Path(__file__).resolve().parents[2]
FAMILIES = {
    "one model for all": (
        "Where clients are alike, or as what the others are measured against: every client predicts with the same "
        "model, and one who comes later simply takes it."
    ),
    "a model of one's own": (
        "Where clients differ in more than their classes and have samples enough for a whole model of their own. It "
        "costs a model's memory on each client and about twice the local work."
    ),
    "mixtures of models": (
        "Where some clients can learn more from some others, or from a part of the average, than from the average."
    ),
    "private layers": (
        "Where clients differ in one part, mostly in which classes they hold: that part stays theirs, the rest is "
        "learnt together. Most cost about as much as FedAvg."
    ),
    "knowledge instead of models": "Where clients cannot or will not share weights, or have different networks.",
    "masks and sub-models": "Where clients share a part of the model only, or cannot afford all of it.",
    "a start that adapts": "Where a client, also one that never took part, has a moment to train before it predicts.",
}
"""When the methods of a family are worth a try."""
REASONS = {
    "wrapping": "Wrappers cannot wrap it: ",
    "stacking": "It is not traced for many clients at once: ",
    "other_networks": "All clients need the same network: ",
    "summing": "The server has to see single uploads: ",
}


def ours() -> list[type[Method]]:
    """Idiolect's own methods."""
    known = (methods.get(name) for name in methods)
    return [cls for cls in known if cls.__module__.startswith("idiolect.")]


def written(cls: type[Method]) -> str:
    """How a method is written with its defaults."""
    return f"{cls.name}(fedavg)" if issubclass(cls, Wrapper) else cls.name


@cache
def deviations() -> dict[str, tuple[str, str]]:
    """For each method its name in words, and what docs/deviations.md says of it."""
    text = (ROOT / "docs" / "deviations.md").read_text(encoding="utf-8")
    lines, found = text.split("\n"), headings(text)
    sections: dict[str, tuple[str, str]] = {}
    for index, heading in enumerate(found):
        if not (names := re.findall(r"`(\w+)`", heading.text)):
            continue
        end = found[index + 1].line if index + 1 < len(found) else len(lines)
        words = heading.text.partition(" (")[0].split(" and ")
        for name, title in zip(names, words, strict=True):
            text = "\n".join(lines[heading.line + 1 : end]).strip()
            sections[name] = (
                title,
                replace_links(text, lambda target: f"../{target}" if is_relative(target) else target),
            )
    return sections


@cache
def measured() -> tuple[str, dict[str, dict[str, Any]]]:
    """What was measured, and every method's costs over FedAvg's."""
    costs = json.loads((ROOT / "docs" / "costs.json").read_text(encoding="utf-8"))
    return costs["title"].removesuffix(": over FedAvg"), {each["method"]: each for each in costs["rows"]}


@cache
def committed() -> list[tuple[Claim, dict[str, Any] | str]]:
    """Every claim with its committed result, or why there is none."""
    folder = ROOT / "reproductions"
    return [(claim, find_result(claim, folder)) for claim in read_claims(folder).values()]


def page_of(cls: type[Method]) -> str:
    """The page of a method; its links are those of a page in docs/methods/."""
    title, deviation = deviations()[cls.name]
    parts = [f"# {title}", f"**{cls.about.title}.** {reference(cls)}".strip(), describe(cls), *when(cls), *run_it(cls)]
    parts += [*options(cls), *exchange(cls), *costs(cls)]
    parts += ["## Deviations from the paper", deviation, *identities(cls), *results(cls), *source(cls)]
    return "\n\n".join(parts) + "\n"


def reference(cls: type[Method]) -> str:
    """Where a method was published, with a link."""
    if not (paper := paper_of(cls)):
        return ""
    kind, _, name = paper.link.partition(":")
    link = {"arXiv": "https://arxiv.org/abs/", "doi": "https://doi.org/"}.get(kind, f"{kind}:") + name
    where = f"{paper.venue} {paper.year}" + (f", [{paper.link.removeprefix('https://')}]({link})" if paper.link else "")
    return f"{paper.authors}: *{paper.title}*. {where}."


def describe(cls: type[Method]) -> str:
    """The docstring without its last sentence, which is the command below."""
    text = re.sub(r"\s*Run it: ``[^`]*``\.", "", inspect.getdoc(cls) or "")
    return from_docstring(text)


def when(cls: type[Method]) -> list[str]:
    """When to try a method: what holds for its family, and what `idiolect advise` goes by."""
    lines = [FAMILIES[cls.about.family]] if cls.about.family in FAMILIES else []
    rules = [rule for rule in RULES if rule.method.partition("(")[0] == cls.name]
    told = []
    for rule in rules:
        levels = " and ".join(f"{level} {name}" for name, level in rule.when.items()) or "any"
        told.append(f"| {levels} | {rule.points:+d} | {rule.reason} |")
    if told:
        lines.append(
            "[`idiolect advise`](../guide.md#advice) measures a federation and gives points for what it finds:"
        )
        lines.append("\n".join(["| clients with | points | because |", "|---|---:|---|", *told]))
    return ["## When to use it", *lines]


def run_it(cls: type[Method]) -> list[str]:
    """An example for the command line and one for Python, on data that need no download."""
    public = methods.build(cls.name).needs.public
    option, setting = (" --public 0.1", ", public=0.1") if public else ("", "")
    others = "ditto" if cls.name in ("local", "fedavg") else written(cls)
    return [
        "## Run it",
        console(f"{example(cls)} --data digits --partition dirichlet:0.3{option} --rounds 20 --out runs/{cls.name}"),
        "```python\n"
        ">>> import idiolect\n"
        f'>>> result = idiolect.run("{written(cls)}", "digits", clients=4, rounds=2, seed=1{setting})\n'
        '>>> 0 <= result.summary["accuracy"]["selected"]["weighted"] <= 1\n'
        "True\n"
        '>>> model = result.model("client-0")                       # the personal model, an nn.Module\n'
        "\n```",
        "Beside others, under the same conditions:",
        console(
            f"idiolect compare --methods 'local, fedavg, {others}' --data digits{option} --seeds 3 --out results/a"
        ),
    ]


def console(command: str) -> str:
    """A command as a block."""
    return f"```console\n$ {command}\n```"


def options(cls: type[Method]) -> list[str]:
    """Options and presets."""
    parts = ["## Options"]
    if known := options_of(cls):
        table = [row("option", "default", "allowed", "meaning"), "|---|---|---|---|"]
        for name, info in known.items():
            meaning = escape_markdown(info.limits.help)
            table.append(row(f"`{name}`", f"`{write(info.default)}`", escape_markdown(describe_limits(info)), meaning))
        parts.append("\n".join(table))
    else:
        parts.append("It has none of its own.")
    inside = "fedavg, " if issubclass(cls, Wrapper) else ""
    rows = []
    for name, preset in cls.presets.items():
        given = ", ".join(f"{key}={write(value)}" for key, value in preset.items()) or "the defaults"
        rows.append(row(f"`{cls.name}({inside}preset={name})`", f"`{given}`"))
    if rows:
        parts += ["\n".join([row("preset", "options"), "|---|---|", *rows])]
    tuned = [preset for preset in read_presets().values() if preset.method.partition("(")[0] == cls.name]
    if tuned:
        parts += [
            "Tuned on committed runs, and taken by `--preset tuned`:",
            "\n".join(f"- {escape_markdown(str(preset))}" for preset in tuned),
        ]
    return parts


def exchange(cls: type[Method]) -> list[str]:
    """What is sent and what stays, and what it needs and refuses."""
    about, wrapper = cls.about, issubclass(cls, Wrapper)
    slots = ", ".join(["those of the method inside"] * wrapper + [f"`{slot}`" for slot in sends(cls)])
    needed = "as the method inside" if wrapper else ", ".join(needs(cls)) or "nothing beyond parameters"
    told = {
        "leaves a client": about.reveals,
        "stays on it": about.stays or "nothing",
        "note": about.caution,
        "slots sent": slots or "none",
        "needs": needed,
    }
    built = methods.build(cls.name)
    lines = [row(head, text) for head, text in told.items() if text]
    reasons = [
        f"- {words}{getattr(built.refuses, name)}." for name, words in REASONS.items() if getattr(built.refuses, name)
    ]
    words = "More of it: [what the server sees](../privacy.md); words in the [glossary](../glossary.md)."
    table = "\n".join(["| | |", "|---|---|", *lines])
    return ["## What it sends and keeps", table, *(["\n".join(reasons)] if reasons else []), words]


def costs(cls: type[Method]) -> list[str]:
    """Costs over FedAvg's."""
    work, known = measured()
    link = "[how it was measured](../methods.md#what-each-costs)"
    if cls.name == "fedavg":
        return ["## Costs", f"It is what the others are [measured against](../methods.md#what-each-costs) ({work})."]
    if cls.name not in known:
        return ["## Costs", f"Not measured ({link})."]
    found = known[cls.name]
    return [
        "## Costs",
        f"Per round, over FedAvg's ({work}; {link}):",
        "\n".join(
            [
                row("bytes up", "bytes down", "time", "95 % interval of time"),
                "|---:|---:|---:|---:|",
                row(
                    *(f"{found[name]:.2f}" for name in ("bytes up", "bytes down", "time")),
                    f"{found['low']:.2f} to {found['high']:.2f}",
                ),
            ]
        ),
    ]


def identities(cls: type[Method]) -> list[str]:
    """What the conformance suite holds a method against."""
    if not cls.identities:
        return []
    lines = [f"- `{ours}` is {theirs.replace('nearly ', 'to rounding ')}" for ours, theirs in cls.identities.items()]
    return ["Checked by the [conformance suite](../../CONTRIBUTING.md#4-state-its-identities):", "\n".join(lines)]


def results(cls: type[Method]) -> list[str]:
    """What came out, of committed results: the paper's claims, and every table that has the method."""
    parts = ["## Results here"]
    own = [(claim, result) for claim, result in committed() if claim.name.partition("-")[0] == cls.name]
    if own:
        heads = row("claim", "what the paper says", "ours", "theirs", "verdict")
        lines = [heads, "|---|---|---|---|---|"]
        for claim, result in own:
            for line in write_rows(claim, result):
                cells = re.split(r"(?<!\\)\|", line)[1:6]
                lines.append("|" + "|".join(cells).replace("](#", "](../reproductions.md#") + "|")
        parts += [
            "The paper's claims, run again ([how](../reproductions.md)); beside a number the nearest other one.",
            "\n".join(lines),
        ]
    lines = [line for claim, result in committed() for line in scores(cls, claim.name, result)]
    if lines:
        heads = row("run", "method", "score, %", "rank", "FedAvg")
        parts += ["Beside others at equal tuning:", "\n".join([heads, "|---|---|---:|---:|---:|", *lines])]
    if not own and not lines:
        parts.append("No [table at equal tuning](../grand.md) that has it has been run yet.")
    if f"`{cls.name}" in (ROOT / "docs" / "results.md").read_text(encoding="utf-8"):
        parts.append("Earlier tables at default settings are among the [results](../results.md).")
    return parts


def scores(cls: type[Method], name: str, result: dict[str, Any] | str) -> list[str]:
    """A row for every variant of a method in a result."""
    if isinstance(result, str) or result.get("quick"):
        return []
    page = "../grand.md" if name.startswith("grand-") else f"../reproductions.md#{name}"
    lines = []
    for case in result.get("cases", ()):
        means = {}
        for each in case["methods"]:
            found = [run["score"] for run in each["runs"] if run["score"] is not None]
            if found:
                means[each["method"]] = interval(found)
        order = sorted(means, key=lambda method: -means[method].mean)
        for method in order:
            if method.partition("(")[0] == cls.name:
                mean, half = means[method]
                spread = "" if half != half else f" ± {show(100 * half)}"
                other = show(100 * means["fedavg"].mean) if "fedavg" in means and method != "fedavg" else ""
                where = f"[{name}]({page})" + (f", {escape_markdown(case['case'])}" if case["case"] else "")
                place = f"{order.index(method) + 1} of {len(order)}"
                lines.append(row(where, f"`{method}`", f"{show(100 * mean)}{spread}", place, other))
    return lines


def source(cls: type[Method]) -> list[str]:
    """Where the code and the paper's table are."""
    path = Path(inspect.getsourcefile(cls) or "").resolve().relative_to(ROOT)
    lines = [f"- the code: [{path}](../../{path})"]
    if (ROOT / "docs" / "papers" / f"{cls.name}.md").is_file():
        lines.append(f"- the paper, row by row: [papers/{cls.name}.md](../papers/{cls.name}.md)")
    if re.search(rf"(?mi)^#+ .*\b{cls.name}\b", (ROOT / "docs" / "choices.md").read_text(encoding="utf-8")):
        lines.append("- [how its defaults were chosen](../choices.md)")
    return ["## More", "\n".join(lines)]


def index() -> str:
    """The list of all methods, family by family."""
    by_name = {cls.name: cls for cls in ours()}
    parts = [
        "# Methods",
        "A method with `(...)` wraps any other: `finetune(ditto)`, `fedlag(flayer(ditto))`. "
        "[Side by side](../methods.md): what "
        "each sends, keeps, needs and costs. [What the server sees](../privacy.md) of each. "
        "[The grand table](../grand.md): all of them on nine federations.",
    ]
    for family, entries in groups().items():
        lines = [row("method", "what it does", "paper"), "|---|---|---|"]
        for name, expression, title in entries:
            lines.append(row(f"[`{expression}`]({name}.md)", title, citation(by_name[name])))
        parts += [f"## {family[0].upper()}{family[1:]}", "\n".join(lines)]
    return "\n\n".join(parts) + "\n"


def groups() -> dict[str, list[tuple[str, str, str]]]:
    """Families with their methods: name, how it is written, what it does."""
    mine = {cls.name for cls in ours()}
    known = [facts for facts in list_methods() if facts["name"] in mine]
    found = group_methods(known)
    assert set(FIVE) <= mine
    return {
        family: [(expression.partition("(")[0], expression, title) for expression, title in entries]
        for family, entries in found.items()
    }


def pages() -> dict[str, str]:
    """All pages of methods, by their place among the documents."""
    return {"methods/index.md": index()} | {f"methods/{cls.name}.md": page_of(cls) for cls in ours()}
