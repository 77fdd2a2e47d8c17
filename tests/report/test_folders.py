"""A study holds the leaderboard of the result files; what does not belong into it is refused by name."""

import json
import shutil

import pytest

import idiolect
from idiolect.comparison.leaderboard import plain
from idiolect.core.checksums import add_checksum, take_checksum
from idiolect.core.errors import InputError, RunFolderError
from idiolect.report import read_study

SMALL = {"clients": 4, "rounds": 2, "model": "linear", "engine": "loop"}


def test_the_leaderboard_is_that_of_the_comparison(comparison, study):
    written = json.loads((comparison / "comparison.json").read_text())
    assert study.methods == [each["method"] for each in written["methods"]]
    for standing, there in zip(study.comparison.rows, written["methods"], strict=True):
        here = json.loads(json.dumps(plain(standing)).replace("NaN", "null"))
        assert here == there
    assert json.loads(json.dumps(study.comparison.protocol)) == written["protocol"]


def test_single_runs_make_the_same_study_as_their_comparison(folder):
    together = read_study([folder])
    single = read_study(sorted(path.parent for path in folder.rglob("config.yaml")))
    assert [plain(each)["selected"] for each in single.comparison.rows] == [
        plain(each)["selected"] for each in together.comparison.rows
    ]


def test_reading_changes_nothing(folder):
    def content():
        return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    before = content()
    study = read_study([folder])
    assert study.first("local").costs
    assert study.federation is not None
    with study.result("ditto") as result:
        assert result is not None
    assert content() == before


# -- the baseline -----------------------------------------------------------------------------------------


def test_the_baseline_is_that_of_the_comparison_unless_another_is_named(folder):
    assert read_study([folder]).baseline == "fedavg"
    study = read_study([folder], baseline="local")
    assert study.baseline == "local"
    assert study.comparison["local"].versus is None
    with pytest.raises(InputError, match=r"fedprox.*is not among the methods"):
        read_study([folder], baseline="fedprox")


# -- what cannot be used --------------------------------------------------------------------------------------


def test_a_run_that_is_not_complete_is_left_out_and_so_is_its_seed(folder):
    (folder / "ditto" / "seed-1" / "summary.json").unlink()
    study = read_study([folder])
    assert study.seeds == [0]
    assert any("ditto/seed-1 is left out" in note and "idiolect resume" in note for note in study.notes)
    assert any(note.startswith("local: seed 1 left out") for note in study.notes)


def test_nothing_complete_is_an_error(folder):
    for path in folder.rglob("summary.json"):
        held = take_checksum(json.loads(path.read_text()))
        path.write_text(json.dumps(add_checksum(held | {"rounds_done": 1})))
    with pytest.raises(RunFolderError, match=r"none of the runs is complete.*idiolect resume"):
        read_study([folder])


@pytest.mark.parametrize(
    "spoil",
    [
        lambda held: "{",
        lambda held: [],
        lambda held: 5,
        lambda held: {"schema": 1},
        lambda held: held | {"rounds": "two"},
        lambda held: held | {"accuracy": []},
        lambda held: held | {"accuracy": {"selected": {}}},
        lambda held: {name: each for name, each in held.items() if name != "bytes_up"},
        lambda held: held | {"partition": "x"},
        lambda held: held | {"versions": None},
    ],
)
def test_a_damaged_summary_is_named(folder, spoil):
    path = folder / "local" / "seed-0" / "summary.json"
    held = spoil(take_checksum(json.loads(path.read_text())))
    path.write_text(
        held if isinstance(held, str) else json.dumps(add_checksum(held) if isinstance(held, dict) else held)
    )
    with pytest.raises(RunFolderError, match=r"local/seed-0/summary.json is damaged.*idiolect resume"):
        read_study([folder])


def test_no_folder_and_no_runs(tmp_path):
    with pytest.raises(RunFolderError, match="there is no folder"):
        read_study([tmp_path / "x"])
    with pytest.raises(RunFolderError, match="holds no runs"):
        read_study([tmp_path])


def test_runs_under_other_settings_are_refused(folder, tmp_path):
    idiolect.run("fedprox", "digits", out=tmp_path / "b", lr=0.5, **SMALL)
    with pytest.raises(
        RunFolderError, match=r"do not belong into one table \(lr: 0.5 in .*b, 0.05 in .*report them apart"
    ):
        read_study([folder, tmp_path / "b"])


def test_runs_on_other_data_are_refused(folder):
    path = folder / "local" / "seed-1" / "summary.json"
    held = take_checksum(json.loads(path.read_text()))
    path.write_text(json.dumps(add_checksum(held | {"partition": held["partition"] | {"hash": "other"}})))
    with pytest.raises(RunFolderError, match=r"partition: other in .*local/seed-1"):
        read_study([folder])


def test_the_same_run_twice_is_refused(folder, tmp_path):
    shutil.copytree(folder / "local" / "seed-0", tmp_path / "b")
    with pytest.raises(RunFolderError, match="both local with seed 0"):
        read_study([folder, tmp_path / "b"])
    assert read_study([folder, folder]).seeds == [0, 1]


def test_methods_without_a_common_seed_are_refused(folder):
    with pytest.raises(RunFolderError, match="local has seed 0; fedavg has seed 1"):
        read_study([folder / "local" / "seed-0", folder / "fedavg" / "seed-1"])


def test_methods_with_tuned_rates_stand_in_one_table_that_says_so(tmp_path):
    idiolect.compare("local, fedavg", "digits", rates={"local": 0.2}, seeds=2, out=tmp_path / "a", **SMALL)
    study = read_study([tmp_path / "a"])
    written = json.loads((tmp_path / "a" / "comparison.json").read_text())
    assert json.loads(json.dumps(study.comparison.protocol)) == written["protocol"]
    assert study.comparison.protocol["rates"] == {"local": 0.2}
    with pytest.raises(RunFolderError, match=r"lr: 0.2 in .*local"):
        read_study([tmp_path / "a" / "fedavg", tmp_path / "a" / "local"])


def test_a_run_without_test_data_has_nothing_to_report(tmp_path):
    idiolect.run("fedavg", "digits", split=[0.8, 0.2, 0.0], out=tmp_path / "a", **SMALL)
    with pytest.raises(RunFolderError, match="has no scores on test data"):
        read_study([tmp_path / "a"])


def test_damaged_settings_are_named(folder):
    path = folder / "local" / "seed-0" / "config.yaml"
    path.write_text(path.read_text().replace("rounds: 2", "rounds: two"))
    with pytest.raises(RunFolderError, match=r"local/seed-0/config.yaml is damaged.*rounds='two'"):
        read_study([folder])


def test_settings_that_were_edited_after_the_run_are_not_shown(folder):
    path = folder / "local" / "seed-0" / "config.yaml"
    path.write_text(path.read_text().replace("lr: 0.05", "lr: 0.9"))
    with pytest.raises(RunFolderError, match=r"local/seed-0/config.yaml is not that of the run"):
        read_study([folder / "local" / "seed-0"])


def test_a_damaged_comparison_is_named_and_its_table_not_needed(folder):
    (folder / "comparison.json").write_text('{"protocol": []}')
    assert read_study([folder]).seeds == [0, 1]
    with (folder / "comparison.yaml").open("a") as file:
        file.write("skipped: [ditto]\n")
    with pytest.raises(RunFolderError, match=r"comparison.yaml is damaged: skipped"):
        read_study([folder])
