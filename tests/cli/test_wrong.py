"""Fifty wrong files and arguments: a sentence answers each, before anything runs and with nothing left behind."""

from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

from idiolect.core.errors import IdiolectError
from idiolect.data import load, table

CODE = """
import torch
from idiolect.data import load
def nothing(): pass
def text(): return "no such source"
def fails(): return 1 / 0
def ragged(): return {"a": ([torch.ones(2), torch.ones(3)], [0, 1])}
def stops(): raise SystemExit(3)
def right(): return {"a": (torch.randn(9, 3), [0, 1, 0] * 3), "b": (torch.randn(9, 3), [0, 1, 1] * 3)}
def survival(): return {"a": (torch.randn(9, 3), torch.rand(9, 2))}
def each(client): return (torch.randn(9, 3), ["a", "b", "c"] * 3) if client else 7
def own_and_shared(client): return load([right()["ab"[client]]], labels="own") if client else right()["a"]
def flat(outputs, y): return torch.zeros(len(y))
def one_client(samples, clients, rng): return [[0, 1, 2]]
def words(samples, clients, rng): return [["a"], ["b"]]
def two(): return {"a": ({"x": torch.randn(9, 3), "z": torch.randn(9, 2)}, [0, 1, 0] * 3)}
def letters(): return {"a": (["x", "y"] * 4, [0, 1] * 4)}
def complex_numbers(): return {"a": (torch.zeros(8, 2, dtype=torch.complex64), [0, 1] * 4)}
def below(): return {"a": (torch.zeros(8, 2), torch.arange(8) % 2 - 1)}
def memory(): raise MemoryError("too much")
def told(outputs, y): return "good"
def several(outputs, y): return (outputs.argmax(1) == y).float()
def gone(*samples): pass
class Empty(torch.nn.Module): pass
class Two(torch.nn.Module):
    def __init__(self): super().__init__(); self.a = torch.nn.Linear(3, 2)
    def forward(self, x): return self.a(x), x
class One(torch.nn.Module):
    def __init__(self): super().__init__(); self.a = torch.nn.Linear(3, 2)
    def forward(self, wrong, names): return self.a(wrong)
"""
ROWS = {"client": ["a", "b"] * 6, "x": [0.5, 1.0, 2.0] * 4, "target": ["no", "yes"] * 6}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Right files, from which each wrong one differs in one thing."""
    folder = tmp_path_factory.mktemp("files")
    write = lambda name, **columns: pl.DataFrame(ROWS | columns).write_csv(folder / name)  # noqa: E731
    (folder / "code.py").write_text(CODE)
    write("right.csv")
    write("gap.csv", x=[None, 1.0, 2.0] * 4)
    write("text.csv", x=["red", "blue", "red"] * 4)
    write("date.csv", x=["2024-05-31"] * 12)
    write("noclass.csv", target=[0.5] * 12)
    write("notarget.csv", target=[None, "no"] * 6)
    write("ids.csv", target=list(range(30))[:12])
    write("fold.csv", fold=["train", "other"] * 6)
    write("days.csv", fold=["spring", "fall"] * 6, day=list(range(12)))
    write("nodate.csv", day=["2001-12-24", "2001-13-45"] * 6)
    write("alltest.csv", fold=["test"] * 12)
    write("inf.csv", x=[float("inf"), 1.0, 2.0] * 4)
    write("comma.csv", x=["1,5", "2,5", "3,5"] * 4)
    write("typo.csv", x=["1.5", "two", "3.5"] * 4)
    (folder / "book.xlsx").write_bytes(b"PK\x03\x04 no table")
    (folder / "utf16.csv").write_bytes("client,x,target\na,1,no\n".encode("utf-16"))
    (folder / "semicolon.csv").write_text("client;x;target\na;1,5;no\nb;2,5;yes\n")
    (folder / "empty.csv").write_text("")
    (folder / "header.csv").write_text("client,x,target\n")
    (folder / "twice.csv").write_text("client,x,x,target\na,1,2,no\n")
    (folder / "binary.csv").write_bytes(bytes(range(256)) * 4)
    (folder / "odd.csv").write_text("client,x,target\na,1,no\nb,1,2,3,4,no\n")
    (folder / "bad.parquet").write_text("no parquet")
    (folder / "bad.npz").write_text("no npz")
    (folder / "none").mkdir()
    (folder / "mixed").mkdir()
    pl.DataFrame({"x": [1.0], "target": ["no"]}).write_csv(folder / "mixed/a.csv")
    pl.DataFrame({"z": [1.0], "target": ["no"]}).write_csv(folder / "mixed/b.csv")
    np.savez(folder / "short.npz", x=np.zeros((4, 2)), y=np.zeros(3, int))
    np.savez(folder / "noy.npz", x=np.zeros((4, 2)))
    np.savez(folder / "client.npz", x=np.zeros((4, 2)), y=np.zeros(4, int), client=np.zeros(3, int))
    np.savez(folder / "nan.npz", x=np.full((4, 2), np.nan), y=np.zeros(4, int))
    np.savez(folder / "object.npz", x=np.array([{}, {}], dtype=object), y=np.zeros(2, int))
    np.savez(folder / "half.npz", x=np.zeros((4, 2)), y=np.zeros(4, int), time=np.arange(3))
    (folder / "twice.yaml").write_text("rounds: 1\nrounds: 2\n")
    (folder / "list.yaml").write_text("- rounds\n")
    (folder / "tab.yaml").write_text("method: fedavg\n\trounds: 1\n")
    (folder / "object.yaml").write_text("method: !!python/object/apply:os.system ['touch it']\n")
    (folder / "half.py").write_text("import torch\ndef right(:\n")
    (folder / "bad.safetensors").write_text("no weights")
    return folder


COMMANDS = {
    "--data nosuch": "there is no data source 'nosuch'",
    "--data right.csv": "'right.csv' is a file: write csv:right.csv",
    "--data csv:missing.csv": "missing.csv is no file or folder",
    "--data csv(right.csv,client=who)": "has no column 'who'",
    "--data csv(right.csv,target=outcome)": "has no column 'outcome'",
    "--data csv(right.csv,scale=yes)": "scale must be one of none, client, federated",
    "--data csv(right.csv,scal=client)": "has no option 'scal'. Did you mean scale",
    "--data csv(right.csv,leave_out=[y])": "has no column 'y'",
    "--data csv(right.csv,leave_out=[x])": "has no columns besides client and target",
    "--data csv(right.csv,client=target)": "is the target, so it cannot be anything else",
    "--data csv(right.csv,samples=99)": "samples=99 is more than the 12 there are",
    "--data csv(right.csv,predict=numbers)": "holds text such as 'no', so it is no number to predict",
    "--data csv(right.csv,separator=;)": "has no column 'client'",
    "--data csv(noclass.csv,predict=classes)": "has values such as 0.5, which are no classes",
    "--data csv(ids.csv,time=x,session=target)": "is the target",
    "--data csv(days.csv,time=day,session=fold)": "one of them decides the splits",
    "--data csv(fold.csv,fold=fold)": "holds 'other', but must say train, val or test",
    "--data csv(alltest.csv,fold=fold)": "has no training samples",
    "--data csv(days.csv,time=fold)": "whose order in time is not known",
    "--data csv(nodate.csv,time=day)": "holds texts such as '2001-13-45', whose order in time is not known",
    "--data csv:gap.csv": "has 4 empty cells; fill them",
    "--data csv:text.csv": "holds text such as 'red'; encode it",
    "--data csv:notarget.csv": "the column 'target' has 6 empty cells",
    "--data csv:inf.csv": "NaN or infinite inputs",
    "--data csv:empty.csv": "empty.csv cannot be read",
    "--data csv:header.csv": "has no rows besides client and target",
    "--data csv:binary.csv": "binary.csv cannot be read",
    "--data csv:odd.csv": "odd.csv cannot be read",
    "--data csv:none": "holds no tables; put a file per client there",
    "--data csv:mixed": "has no column",
    "--data parquet:bad.parquet": "bad.parquet cannot be read",
    "--data npz:bad.npz": "bad.npz cannot be read",
    "--data npz:short.npz": "4 inputs but 3 targets",
    "--data npz:noy.npz": "has no array 'y'|noy.npz",
    "--data npz:client.npz": "4 samples but 3 clients",
    "--data npz:nan.npz --clients 2 --partition iid": "NaN or infinite inputs",
    "--data npz:object.npz": "object.npz cannot be read",
    "--data npz:half.npz": "4 samples but 3 of time",
    "--data code.py:nosuch": "nosuch",
    "--data code.py:nothing": "a NoneType is no data",
    "--data code.py:text": "there is no data source 'no such source'",
    "--data code.py:fails": "division by zero",
    "--data code.py:two": "mlp takes one input, but the data have several",
    "--data code.py:two --model code.py:One": "forward of One takes wrong, names",
    "--data code.py:ragged --model code.py:Empty": "Empty has no parameters to train|forward of Empty takes",
    "--data csv:right.csv --model resnet18": "resnet18",
    "--data book.xlsx": "'book.xlsx' is a file that no source reads: save it as CSV or Parquet",
    "--data csv:book.xlsx": "its first line is no text); a table is a text file in UTF-8",
    "--data csv:utf16.csv": "a table is a text file in UTF-8, with a header",
    "--data csv:semicolon.csv": "its cells seem to be separated by ;: separator=';'",
    "--data csv:comma.csv": "holds text such as '1,5'; write numbers with a point, as in 1.5",
    "--data csv:typo.csv": "holds text such as 'two'; 4 of 12 cells are no numbers",
    "--data csv(right.csv,labels=own,target=x)": "labels=own is for classes, but 'x' holds numbers",
    "--data csv(right.csv,labels=own) --method fedavg": "averages the output layer",
    "--data code.py:stops": "SystemExit: 3",
    "--data code.py:each --clients 2": "client 'client-0'",
    "--data code.py:own_and_shared --clients 2": "some clients have labels of their own, others share theirs",
    "--data code.py:survival --loss cox --model linear": "cox takes one time per sample, below 0 where",
    "--data code.py:right --loss code.py:flat": "nothing can be learned from the loss, since it has no gradient",
    "--data digits --partition code.py:one_client --clients 2": "gives samples to 1 clients, but there are to be 2",
    "--data digits --partition code.py:words --clients 2": "must give one list of sample numbers per client",
    "--data csv:right.csv --partition iid --clients 99": "12",
    "--data csv:right.csv --split 0.5,0.5,0.5": "sum to 1",
    "--data csv:right.csv --initial bad.safetensors": "cannot be read as safetensors",
    "--data csv:right.csv --metrics nosuch": "nosuch",
    "--data code.py:letters": "the inputs are of type <U1, not numbers",
    "--data code.py:complex_numbers": "or complex; give one row of real numbers per sample",
    "--data code.py:below": "has the label -1; number the classes from 0 on",
    "--data code.py:memory": "MemoryError: too much",
    "--data code.py:torch": "it is a module, but must be a class derived from Source or a function",
    "--data half.py:right": "line 2: SyntaxError",
    "--data code.py:right --model code.py:Two": "must return one tensor, not tuple",
    "--data code.py:right --loss code.py:gone": "the loss must give a tensor, not a NoneType",
    "--data code.py:right --transform code.py:gone": "gives a NoneType; it gets one sample as a tensor",
    "--data code.py:right --metrics code.py:told": "the metric 'told' must give one number, but gives str",
    "--data code.py:right --metrics code.py:several": "must give one number, but gives shape (2,)",
    "tab.yaml": "is not YAML: line 2",
    "object.yaml": "could not determine a constructor for the tag",
    "twice.yaml": "'rounds' is given twice",
    "list.yaml": "must be a list of 'name: value' lines",
}


@pytest.mark.parametrize("line", COMMANDS)
def test_a_wrong_command_is_answered_by_a_sentence(line, files, call, monkeypatch):
    monkeypatch.chdir(files)
    before = sorted(files.rglob("*"))
    code, out, err = call("run", *line.split(" "), "--rounds", "1", "--out", "run")
    lines = [text for text in err.splitlines() if text]
    assert code != 0
    assert not out
    assert any(part in " ".join(lines) for part in COMMANDS[line].split("|")), err
    assert sum(text.startswith("error:") for text in lines) == 1, err
    assert "Traceback" not in err
    left = sorted(path for path in files.rglob("*") if "__pycache__" not in path.parts)
    assert left == [path for path in before if "__pycache__" not in path.parts]


FRAME = pd.DataFrame(ROWS)
X, Y = torch.randn(6, 2), torch.tensor([0, 1] * 3)
ARGUMENTS = [
    (lambda: load(FRAME, target="traget"), "has no column 'traget'"),
    (lambda: load(FRAME, traget="target"), "has no argument 'traget' for tables and arrays. Did you mean target"),
    (lambda: load(FRAME, inputs="tokens"), "has no argument 'inputs' for tables. It has client, target"),
    (lambda: load("digits", clinets=3), "Did you mean clients"),
    (lambda: load(Path(__file__), length=3), "csv has no option 'length'"),
    (lambda: load(FRAME.assign(x=[object()] * 12), client="client"), "'x'"),
    (lambda: load(FRAME.assign(x=pd.date_range("2024", periods=12)), client="client"), "holds dates or times"),
    (lambda: load(pd.concat([FRAME, FRAME[["x"]]], axis=1)), "several columns called 'x'"),
    (lambda: load({"a": FRAME, "b": FRAME}), "has a column 'client', but the tables come by client"),
    (lambda: load("digits", target="x"), "cannot be given beside the name of a source"),
    (lambda: load((X, Y), target="x"), "has no argument 'target' for arrays"),
    (lambda: load((X, Y), predict="classe"), "predict must be classes or numbers"),
    (lambda: load((X, ["a", "b"] * 3), predict="numbers"), "are text, so they are no numbers"),
    (lambda: load((X, Y), inputs="tokens"), "are whole numbers, but some of these are not"),
    (lambda: load(Path("nowhere.csv"), target="x"), "nowhere.csv is no file or folder"),
    (lambda: load([(X, Y), (X, Y[:3])]), "6 inputs but 3 targets"),
    (lambda: load({"a": ({"x": X}, Y), "b": (X, Y)}), "all clients must agree"),
    (
        lambda: load({"a": table(FRAME, client="client")}, labels="own"),
        "labels is said where each client's table is made",
    ),
    (lambda: load((X, Y), labels="own"), "labels=own is for tables and for clients that come with arrays"),
    (lambda: load(({"x": X}, Y[:3])), "6 inputs but 3 targets|must be one target"),
]


@pytest.mark.parametrize(("wrong", "message"), ARGUMENTS, ids=[message[:40] for _, message in ARGUMENTS])
def test_a_wrong_argument_is_answered_by_a_sentence(wrong, message):
    with pytest.raises(IdiolectError) as refused:
        wrong()
    assert any(part in str(refused.value) for part in message.split("|")), refused.value
    assert "\n" not in str(refused.value)


def test_there_are_fifty():
    assert len(COMMANDS) + len(ARGUMENTS) >= 50
