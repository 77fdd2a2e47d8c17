"""`idiolect tune`: the choice, and the comparison that follows."""

import pytest
import yaml

QUICK = ("--clients", "5", "--rounds", "3", "--model", "mlp(hidden=[8])", "--engine", "loop", "--quiet")


def test_tuning_shows_the_choice_and_writes_a_comparison(call, folder):
    pytest.importorskip("optuna")
    arguments = ("tune", "--methods", "fedavg, fedprox", "--trials", "2", "--space", "lr=0.2", "--out", "t", *QUICK)
    code, out, err = call(*arguments)
    assert (code, err) == (0, "")
    assert [line.split()[-1] for line in out.splitlines() if line.startswith("fed")] == ["2", "2"]
    assert "idiolect compare t/tuned.yaml --seeds 3" in out
    assert yaml.safe_load((folder / "t" / "tuned.yaml").read_text())["lr"] == 0.2
    assert call("compare", "t/tuned.yaml", "--seeds", "1", "--out", "c", "--quiet")[0] == 0
    assert call(*arguments)[1] == out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "no methods to tune"),
        (("-m", "fedprox", "--space", "mu"), "cannot be read"),
        (("-m", "fedprox", "--space", "nu=0:1"), "Did you mean mu"),
        (("-m", "fedprox", "--space", "mu=-1:1"), "mu must lie in"),
    ],
)
def test_bad_tuning_gets_a_sentence(call, folder, arguments, said):
    pytest.importorskip("optuna")
    code, _, err = call("tune", *arguments, *QUICK)
    assert code == 2
    assert said in err
    assert list(folder.iterdir()) == []
