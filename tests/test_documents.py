"""Every block of code in a document runs in a test, or says what it is: output, a file, commands of other programs."""

import ast
import doctest
import json
import os
import tomllib
from pathlib import Path

import click
import pytest
import typer.main
import yaml

from idiolect.cli.app import app
from idiolect.contract import methods

ROOT = Path(__file__).parents[1]
LANGUAGES = {"python", "console", "text", "bash", "toml", "yaml", "bibtex", "json"}
"""`python` with prompts and `console` are tried here or as doctests; `text` is output; `bash` is commands that stay up,
need other machines, or are other programs'."""


@pytest.fixture(scope="module")
def notebooks(import_site_script):
    """The module that knows a page's blocks and makes notebooks of them."""
    return import_site_script("notebooks")


DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), ROOT / "examples" / "plugin" / "README.md"]
)
NEEDS = {"flower": "flwr", "cluster": "ray", "tune": "optuna"}
TUTORIALS = sorted(path.stem for path in (ROOT / "docs" / "tutorials").glob("*.md") if path.stem != "index")


@pytest.mark.parametrize("path", DOCUMENTS)
def test_every_block_says_what_it_is_and_is_that(notebooks, path):
    for language, text in notebooks.blocks((ROOT / path).read_text(encoding="utf-8")):
        if not language:
            continue
        assert language in LANGUAGES, f"{path}: ```{language}\n{text}"
        if language == "python" and ">>>" not in text:
            ast.parse(text if not text.startswith(" ") else "if True:\n" + text)
        elif language == "console":
            for words in notebooks.commands(text):
                parse(words, own="plugin" in path)
        elif language == "toml":
            tomllib.loads(text)
        elif language == "yaml":
            assert yaml.safe_load(text)


def parse(words, own):
    """Let the command line read a command, without running it; `own` methods, of no installed package, stay unread."""
    if words[0] != "idiolect" or "..." in words or len(words) == 1:
        return
    group = typer.main.get_command(app)
    command = group.commands.get(words[1])
    if command is None:
        assert words[1] in ("--help", "--version", "--install-completion"), words
        return
    try:
        context = command.make_context(words[1], words[2:])
    except click.exceptions.Exit:
        return  # --help
    except click.ClickException as error:
        pytest.fail(f"{' '.join(words)}: {error.format_message()}")
    given = context.params.get("method") or context.params.get("methods")
    if isinstance(given, str) and given != "all" and ".py:" not in given and not own:
        methods.split_and_build(given)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in ("cluster", "method") else ()) for name in TUTORIALS]
)
def test_a_tutorial_does_what_it_says(notebooks, name, tmp_path, monkeypatch, call):
    """Its sessions, files and commands, from its beginning to its end, in an empty folder."""
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    if name == "cluster" and "RAY_ADDRESS" not in os.environ:
        pytest.skip("RAY_ADDRESS names no cluster; tests/engines/cluster starts one and makes the same calls")
    monkeypatch.chdir(tmp_path)
    known: dict[str, object] = {}
    page = (ROOT / "docs" / "tutorials" / f"{name}.md").read_text(encoding="utf-8")
    for block in notebooks.blocks(page):
        if file := notebooks.file_name(block):
            Path(file).write_text(block.text, encoding="utf-8")
        elif block.language == "python":
            session = doctest.DocTestParser().get_doctest(block.text, known, name, None, 0)
            said: list[str] = []
            outcome = doctest.DocTestRunner(verbose=False).run(session, out=said.append, clear_globs=False)
            assert outcome.failed == 0, "".join(said)
            known = session.globs
        elif block.language == "console":
            for program, *arguments in notebooks.commands(block.text):
                assert program == "idiolect"
                code, _, err = call(*arguments)
                assert code == 0, err


@pytest.mark.parametrize("name", TUTORIALS)
def test_a_notebook_has_all_of_its_page(notebooks, name):
    page = (ROOT / "docs" / "tutorials" / f"{name}.md").read_text(encoding="utf-8")
    made = json.loads(notebooks.notebook(page))
    assert (made["nbformat"], made["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in made["cells"]}) == len(made["cells"])
    code = [cell["source"] for cell in made["cells"] if cell["cell_type"] == "code"]
    for source in code:
        if not source.startswith(("!", "%")):
            ast.parse(source)
    examples = [example.source.strip() for example in doctest.DocTestParser().get_examples(page)]
    assert [source for source in code if not source.startswith(("!", "%"))] == examples
    prose = "\n".join(cell["source"] for cell in made["cells"] if cell["cell_type"] == "markdown")
    assert "](../" not in prose, "what a notebook links to is not beside it"


def test_the_parts_of_a_page_are_found(notebooks):
    assert doctest.testmod(notebooks).failed == 0
