"""`idiolect export --all`: every client's model in a folder of its own."""

import idiolect


def test_every_client_has_a_folder_whose_file_stands_alone(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call("run", "--out", "r", "--clients", "3", "--rounds", "1", "--model", "linear", "--quiet", "--engine", "loop")
    code, out, _ = call("export", "r", "--all", "--format", "safetensors,torchscript")
    assert (code, "wrote 3 models" in out) == (0, True)
    made = sorted((tmp_path / "models").iterdir())
    assert [path.name for path in made] == [f"{at:04d}-client-{at}" for at in range(3)]
    assert {path.name for path in made[1].iterdir()} == {"model.safetensors", "model.pt", "card.md"}
    assert idiolect.read_card(made[1] / "model.safetensors")["client"] == "client-1"
    code, _, err = call("export", "r", "--all")
    assert (code, "is not empty" in err) == (2, True)
    code, _, err = call("export", "r", "--all", "--position", "0")
    assert (code, "leave --client, --position and --global out" in err) == (2, True)
