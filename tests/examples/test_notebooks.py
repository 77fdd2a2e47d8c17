"""The notebooks run from the first cell to the last in an empty folder, and show what they promise."""

import ast
import json
from pathlib import Path

import pytest

NOTEBOOKS = sorted(Path("examples").resolve().glob("*.ipynb"))


def run_cells(path):
    """What each code cell shows: the value of its last expression."""
    cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    space, shown = {"__name__": "__main__"}, []
    for number, cell in enumerate(cells):
        body = ast.parse("".join(cell["source"])).body
        last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
        exec(compile(ast.Module(body, []), f"{path.name} cell {number}", "exec"), space)
        code = None if last is None else compile(ast.Expression(last.value), f"{path.name} cell {number}", "eval")
        shown.append(None if code is None else eval(code, space))
    return space, shown


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    space, shown = run_cells(path)
    assert any(hasattr(value, "_repr_html_") for value in shown)
    if path.stem == "compare":
        assert (tmp_path / "results" / "table.tex").read_text().count("\\\\") == 7  # two lines of heads, five methods
        assert space["board"].rows
    else:
        assert (tmp_path / "runs" / "models" / "ward-4.safetensors").is_file()
        assert space["newcomer"].scores()["point"].to_list() == ["personal", "adapted"]


def test_there_are_notebooks_and_they_hold_no_output():
    assert [path.stem for path in NOTEBOOKS] == ["compare", "personal_models"]
    for path in NOTEBOOKS:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)
