"""A model file is what was written, or is refused; files of other programs are taken as they are."""

import random

import pytest
import torch
from safetensors.torch import save_file

import idiolect
from idiolect.core.errors import RunFolderError
from idiolect.runs.model_files import read_model, write_model

WEIGHTS = {"b": torch.arange(3.0), "a": torch.tensor([[1, 2]]), "n": torch.tensor(7)}


def test_weights_come_back(tmp_path):
    write_model(tmp_path / "m.safetensors", WEIGHTS, {"client": "ä"})
    read, about = read_model(tmp_path / "m.safetensors")
    assert about == {"client": "ä"}
    assert read.keys() == WEIGHTS.keys()
    assert all(torch.equal(read[name], leaf) for name, leaf in WEIGHTS.items())


def test_a_flipped_bit_is_refused_or_changes_nothing(tmp_path):
    path, draw, refused = tmp_path / "m.safetensors", random.Random(0), 0
    write_model(path, WEIGHTS, {"client": "a"})
    whole = path.read_bytes()
    for _ in range(200):
        data = bytearray(whole)
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        path.write_bytes(data)
        try:
            read, _ = read_model(path)
            assert all(torch.equal(read[name], leaf) for name, leaf in WEIGHTS.items())
        except RunFolderError:
            refused += 1
    assert refused > 150


def test_a_file_of_another_program_is_taken_as_it_is(tmp_path):
    save_file(WEIGHTS, tmp_path / "m.safetensors")
    assert torch.equal(read_model(tmp_path / "m.safetensors")[0]["b"], WEIGHTS["b"])


def test_a_summary_of_all_rounds_is_written_after_the_models(tmp_path, monkeypatch):
    """A comparison takes a run with such a summary for complete, so nothing may be missing then."""
    folder = tmp_path / "r"
    monkeypatch.setattr(idiolect.Result, "save_models", lambda self, folder: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        idiolect.run(clients=3, rounds=1, model="linear", engine="loop", save_models=True, out=folder)
    assert not (folder / "summary.json").exists()
