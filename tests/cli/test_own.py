"""Own data and networks on the command line and in YAML, by every command."""

import pytest
import yaml

CODE = """
import torch
from dataclasses import dataclass
from torch import nn
from idiolect.methods.fedavg import FedAvg

def wards(sites: int = 3):
    draw = torch.Generator().manual_seed(0)
    return {f"ward-{i}": (torch.randn(20, 4, generator=draw) + i, torch.arange(20) % 2) for i in range(sites)}

class Net(nn.Sequential):
    def __init__(self, outputs):
        super().__init__(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, outputs))

def loss(outputs, y):
    return nn.functional.cross_entropy(outputs, y, reduction="none")

def hits(outputs, y):
    return (outputs.argmax(1) == y).double().mean()

@dataclass(frozen=True)
class Mine(FedAvg):
    pass
"""
OWN = {"data": "mine.py:wards(sites=2)", "model": "mine.py:Net", "loss": "mine.py:loss"}
OWN |= {"metrics": "mine.py:hits, accuracy", "rounds": 1, "engine": "loop"}
FLAGS = [word for name, value in OWN.items() for word in (f"--{name}", value)]


@pytest.fixture(autouse=True)
def code(folder):
    (folder / "mine.py").write_text(CODE)
    return folder / "mine.py"


def test_a_run_goes_from_own_code_to_model_report_and_export(call, folder):
    (folder / "own.yaml").write_text(yaml.safe_dump({"method": "mine.py:Mine", **OWN}))
    for words, said in (
        (("run", "own.yaml", "--out", "a", "-q"), "mine.py:Mine on mine.py:wards, 2 clients"),
        (("resume", "a", "-q"), "hits"),
        (("watch", "a", "--once"), "hits"),
        (("export", "a", "--client", "ward-1"), "wrote model-ward-1/model.safetensors"),
        (("report", "a", "-q"), "written: report.html"),
        (("partition", "--data", OWN["data"]), "ward-1"),
        (("data", "mine.py:wards"), "sites"),
    ):
        status, out, err = call(*words)
        assert (status, err) == (0, ""), (words, err)
        assert said in out, words


def test_a_comparison_with_jobs_a_tuning_and_advice_take_own_code(call):
    for words in (
        ("compare", "-m", "fedavg, mine.py:Mine", "--seeds", "1", "--jobs", "2", "--out", "c", "-q", *FLAGS),
        ("tune", "-m", "mine.py:Mine", "--trials", "1", "--out", "t", "-q", *FLAGS),
        ("advise", "--no-race", *FLAGS),
    ):
        status, _, err = call(*words)
        assert (status, err) == (0, ""), (words, err)
    assert "validation hits, mean over seeds" in call("watch", "c", "--once")[1]


def test_a_function_for_one_client_serves_comparisons_with_jobs_tuning_and_advice(call, code):
    code.write_text(CODE + "\ndef ward(client: int):\n    return wards(3)[f'ward-{client}']\n")
    flags = [word if word != OWN["data"] else "mine.py:ward" for word in FLAGS] + ["--clients", "3"]
    for words in (
        ("compare", "-m", "fedavg, local", "--seeds", "1", "--jobs", "2", "--out", "c", "-q", *flags),
        ("tune", "-m", "local", "--trials", "1", "--out", "t", "-q", *flags),
        ("advise", "--rounds", "1", *flags),
    ):
        status, out, err = call(*words)
        assert status == 0, (words, err)
        assert "mine.py:ward" in out or words[0] == "tune"


def test_a_mistake_in_the_file_is_one_line(call, code):
    code.write_text(CODE + "\nimport no_such_module\n")
    status, _, err = call("run", "fedavg", *FLAGS)
    assert status == 2
    assert err.splitlines() == [
        f"error: the code in {code} cannot be run: {code}, line {len(CODE.splitlines()) + 2}: ModuleNotFoundError:"
        " No module named 'no_such_module'"
    ]
