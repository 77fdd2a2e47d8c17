"""A run's folder is opened without its data, and what needs them asks for them. Every method: test_model_card.py."""

import shutil

import pytest
import torch
from torch import nn

import idiolect
from idiolect.core.errors import DataError, InputError, ModelError, RunFolderError
from idiolect.testing import tiny_federation, tiny_model


def run(text, out, **changes):
    settings = {"rounds": 1, "engine": "loop", "batch_size": 4, "lr": 0.1, "model": tiny_model(), **changes}
    return idiolect.run(text, tiny_federation(unseen=1), out=out, **settings)


class Own(nn.Module):
    """A network that does not say how it was built."""

    def __init__(self, size, name="ü"):
        super().__init__()
        self.layer = nn.Linear(4, size)

    def forward(self, x):
        return nn.functional.tanh(self.layer(x))


def test_what_was_given_in_python_is_asked_for_where_it_is_needed(tmp_path):
    def loss(outputs, y):
        return nn.functional.cross_entropy(outputs, y, reduction="none")

    result, x = run("fedprox", tmp_path / "r", model=Own(3), loss=loss), torch.randn(3, 4)
    again = idiolect.load(tmp_path / "r")
    assert (again.summary, len(again.metrics)) == (result.summary, len(result.metrics))
    with pytest.raises(ModelError, match=r"Own was built in Python .*give it: idiolect.load\(.*, model=...\)"):
        again.model(0)
    again = idiolect.load(tmp_path / "r", model=Own(3))
    assert torch.equal(again.model("c1")(x), result.model(1)(x))
    with pytest.raises(ModelError, match=r"the loss was given in Python; give it again: .*loss=..."):
        again.onboard(x, [0, 1, 2])
    again = idiolect.load(tmp_path / "r", model=Own(3), loss=loss)
    both = [each.onboard(x, [0, 1, 2], name="new").scores() for each in (again, result)]
    assert both[0].equals(both[1])
    with pytest.raises(DataError, match=r"keeps no data, and this needs them: .*idiolect.load\(.*, data=...\)"):
        again.plan.split(0, "train")
    with pytest.raises(RunFolderError, match="started in Python with own data"):
        again.plan_with_data()


def test_data_that_are_given_are_compared_by_name_and_fingerprint(tmp_path):
    run("fedavg", tmp_path / "r")
    assert not idiolect.load(tmp_path / "r", data=tiny_federation(unseen=1), model=tiny_model()).lacks_data
    with pytest.raises(RunFolderError, match=r"under other settings \(.*unseen: c5 there, but not now"):
        idiolect.load(tmp_path / "r", data=tiny_federation(), model=tiny_model())


def test_data_with_a_name_are_loaded_when_something_needs_them(tmp_path):
    folder = tmp_path / "r"
    result = idiolect.run("finetune(fedavg)", clients=4, rounds=2, model="linear", out=folder, engine="loop")
    again, x = idiolect.load(folder), torch.rand(2, 1, 8, 8)
    assert torch.equal(again.model(1)(x), result.model(1)(x))
    assert again.lacks_data
    assert torch.equal(again.model(1, round=-1)(x), result.model(1, round=-1)(x))
    if again.store.facts.selected != 1:
        assert not again.lacks_data  # of another round than was kept


def test_models_are_exported_from_the_folder_alone(tmp_path):
    from idiolect.runs.export import export, personal_of

    result, x = run("ditto", tmp_path / "r"), torch.randn(3, 4)
    shutil.move(tmp_path / "r", tmp_path / "moved")
    again = idiolect.load(tmp_path / "moved")
    path, *_ = export(personal_of(again, "c0"), tmp_path / "m", ["safetensors", "torchscript"])
    assert torch.equal(idiolect.load_model(path)(x), result.model(0)(x))


def test_an_edited_setting_or_method_is_refused(tmp_path):
    run("ditto", tmp_path / "r")
    path = tmp_path / "r" / "config.yaml"
    path.write_text(path.read_text().replace("lr: 0.1", "lr: 0.2"))
    with pytest.raises(RunFolderError, match=r"lr: 0\.1 there, 0\.2 now"):
        idiolect.load(tmp_path / "r")
    with pytest.raises(InputError, match="'lr' cannot be given for a run that is there already"):
        idiolect.load(tmp_path / "r", lr=0.2)
