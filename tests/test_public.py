"""The public names are sorted, complete and documented, and what the documents say is there is there."""

import ast
import importlib.util
import inspect
import re
import shlex
import subprocess
import sys
from dataclasses import fields, is_dataclass
from functools import cache
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path

import pytest

import idiolect
from idiolect.cli.app import command
from idiolect.contract import ClientContext, Method, Needs, Phase, Refuses, ServerContext, Slot, Sums, Training, methods
from idiolect.data.partitions import partitions

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src" / "idiolect"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAPERS = sorted((ROOT / "docs" / "papers").glob("*.md"))
OURS = [name for name in methods if methods.get(name).__module__.startswith("idiolect.")]

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


TYPE = """
import os, sys
import matplotlib.pyplot, numba, optuna, polars, rich, scipy.special, torch, torch.func, typer, yaml
import idiolect
for names in sys.argv[1:]:
    if os.fork() == 0:
        for name in names.split():
            try:
                eval(name)
            except AttributeError as error:
                print(f"{name}: {error}", flush=True)
        os._exit(0)
    os.wait()
"""


def typed_by_a_user(names: set[str]) -> set[str]:
    """What goes wrong where a user types one of these names after `import idiolect`, those of each room in a process of
    their own, so that no name finds a module that another one has loaded."""
    rooms = groupby(sorted(names, key=room_of), room_of)
    together = [" ".join(group) for _, group in rooms]
    done = subprocess.run([sys.executable, "-c", TYPE, *together], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines())


def room_of(name: str) -> str:
    """What stands before the last part of a name."""
    return name.rpartition(".")[0]


def rooms() -> list[str]:
    """The packages that say which names are public."""
    return [name for name in dir(idiolect) if hasattr(getattr(idiolect, name), "__all__")]


def table(page: Path, heading: str) -> list[str]:
    """The first cells of the first table under a heading."""
    section = page.read_text().partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = re.search(r"(?:^\|.*\n)+", section, re.MULTILINE)
    assert rows, f"no table under {heading!r} in {page.name}"
    return [row.split("|")[1].strip() for row in rows[0].splitlines()[2:]]


def quoted(cells: list[str]) -> set[str]:
    """The names that cells put into backquotes, without what follows a bracket."""
    return {name.partition("(")[0] for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


# -- names -----------------------------------------------------------------------------------------


def test_the_public_names_are_sorted_and_there_is_no_other():
    assert idiolect.__all__ == sorted(idiolect.__all__)
    public = {name for name in dir(idiolect) if not name.startswith("_")}
    assert {name for name in public if not inspect.ismodule(getattr(idiolect, name))} == set(idiolect.__all__)


@pytest.mark.parametrize("name", idiolect.__all__)
def test_every_public_name_says_what_it_is(name):
    text = inspect.getdoc(getattr(idiolect, name)) or ""
    assert text, f"{name} has no docstring"
    assert not text.startswith(f"{name}("), f"{name} has only the docstring that its decorator made"


@pytest.mark.parametrize("room", rooms())
def test_every_public_name_of_a_room_exists_and_says_what_it_is(room):
    package = getattr(idiolect, room)
    for name in package.__all__:
        value = getattr(package, name)
        if inspect.isclass(value) or inspect.isroutine(value):
            assert value.__doc__, f"idiolect.{room}.{name} has no docstring"
            assert not value.__doc__.startswith(f"{name}("), f"idiolect.{room}.{name} has no docstring of its own"


@cache
def docstrings() -> dict[str, str]:
    """The docstrings of all sources, by file."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    nodes = {path: ast.walk(ast.parse(path.read_text())) for path in sorted(SOURCES.rglob("*.py"))}
    return {
        str(path.relative_to(SOURCES)): "\n".join(ast.get_docstring(n) or "" for n in inside if isinstance(n, kinds))
        for path, inside in nodes.items()
    }


def test_every_name_in_documents_and_docstrings_exists_as_it_is_typed():
    """And names that do not exist are found."""
    written = "\n".join([*(page.read_text() for page in PAGES), *docstrings().values()])
    text = re.sub(r"github\.com\S*", "", written)
    programs = set(re.findall(r"python -m (idiolect\.[\w.]+)", text))
    assert all(find_spec(program) for program in programs)
    names = set(re.findall(r"(?<![\w/])idiolect(?:\.[A-Za-z_]\w*)+", text)) - programs
    assert {"idiolect.run", "idiolect.report.write_report", "idiolect.core.errors.DataError"} <= names
    assert typed_by_a_user({*names, "idiolect.runs.nothing", "idiolect.nothing", "idiolect.runs.settings.Config"}) == {
        "idiolect.nothing: module 'idiolect' has no attribute 'nothing'",
        "idiolect.runs.nothing: module 'idiolect.runs' has no attribute 'nothing'",
    }


def test_every_field_of_the_contract_that_is_named_exists():
    """`ctx.grad`, `Phase.part`, `needs.holdout` and their like, in documents and in docstrings."""
    owners = {
        "ctx": (ClientContext, ServerContext),
        "ClientContext": (ClientContext,),
        "ServerContext": (ServerContext,),
        "Method": (Method,),
        "Phase": (Phase,),
        "Slot": (Slot,),
        "Sums": (Sums,),
        "Needs": (Needs,),
        "needs": (Needs,),
        "Refuses": (Refuses,),
        "refuses": (Refuses,),
        "Training": (Training,),
    }
    pattern = re.compile(rf"`(?:``)?({'|'.join(owners)})\.(\w+)")
    for name, text in {**{page.name: page.read_text() for page in PAGES}, **docstrings()}.items():
        for owner, field in pattern.findall(text):
            known = {field for cls in owners[owner] for field in (*dir(cls), *getattr(cls, "__annotations__", ()))}
            known |= {entry.name for cls in owners[owner] if is_dataclass(cls) for entry in fields(cls)}
            assert field in known, f"{name}: there is no {owner}.{field}"


@pages
def test_every_source_file_in_the_documents_exists(page):
    places = (SOURCES, ROOT, SOURCES / "kernels", SOURCES / "runs", ROOT / "tests")
    for path in re.findall(r"`([\w/]+/[\w]+\.py)`", page.read_text()):
        if "proxhead" in path:
            continue  # which the reader is about to write
        assert any((place / path).is_file() for place in places), f"{page.name}: there is no {path}"


# -- what the documents list -------------------------------------------------------------------------


def test_what_the_documents_say_of_the_methods_is_what_the_methods_say():
    """If not, run `make pages`."""
    spec = importlib.util.spec_from_loader("pages", SourceFileLoader("pages", str(ROOT / "scripts" / "pages")))
    written = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(written)
    for name, content in written.PAGES.items():
        assert (ROOT / name).read_text() == content(), name


@pytest.mark.parametrize(
    ("page", "heading"), [("docs/methods.md", "What each does"), ("docs/privacy.md", "Method by method")]
)
def test_the_documents_list_every_method(page, heading):
    assert quoted(table(ROOT / page, heading)) == set(OURS)


def test_for_every_method_it_is_said_how_it_follows_its_paper():
    text = (ROOT / "docs" / "deviations.md").read_text()
    assert [name for name in OURS if f"`{name}" not in text] == []


def test_every_partition_is_explained():
    assert set(partitions) <= quoted(table(ROOT / "docs" / "data.md", "Partitions"))


def test_every_number_in_a_result_is_explained():
    text = (ROOT / "docs" / "protocol.md").read_text()
    result = idiolect.run("finetune(fedavg)", "digits", clients=5, rounds=1, unseen=0.2, after_local=True)
    block = result.summary["accuracy"]
    for name in (*result.summary, *block, *block["selected"], *result.metrics.columns):
        assert f"`{name}`" in text or name == "accuracy", f"docs/protocol.md does not explain {name}"


# -- what the documents tell to do ----------------------------------------------------------------------


@pages
def test_every_command_in_the_documents_can_be_read(page):
    for line in re.findall(r"^\$ (.*)$", page.read_text(), re.MULTILINE):
        program, *arguments = shlex.split(line)
        if program == "make":
            targets = [each for each in arguments if "=" not in each]
            makefile = (ROOT / "Makefile").read_text()
            assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets), line
        elif program == "idiolect":
            read_command(line)


def read_command(line: str) -> dict:
    """What the command line makes of a command; an error if it cannot be read."""
    name, *arguments = shlex.split(line)[1:]
    known = getattr(command(), "commands")  # noqa: B009
    assert name in known, line
    return known[name].make_context(name, arguments).params


@pytest.mark.parametrize("page", PAPERS, ids=lambda page: page.name)
def test_what_the_tables_of_a_paper_name_is_there(page):
    """Functions, methods with their options, and commands, in which DATA and OPTIM stand for more options."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for said in re.findall(r"`([^`]+)`", text):
        if found := re.match(r"(analysis|report)\.(\w+)", said):
            assert found[2] in getattr(idiolect, found[1]).__all__, said
        elif said.startswith("idiolect ") and len(said.split()) > 2 and "--local-models" not in said:
            chosen = read_command(said.replace("DATA", "").replace("OPTIM", ""))
            methods.split_and_build(chosen.get("methods") or chosen.get("method") or "fedavg")
        elif said.partition("(")[0] in OURS and not re.search(r"\.\.\.|METHOD", said):
            methods.split_and_build(said)


@pages
def test_every_link_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), f"{page.name}: {target} does not exist"
