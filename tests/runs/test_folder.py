"""A folder is free, or there is one sentence that says what it holds and what to do."""

import pytest

from idiolect.contract.method import methods
from idiolect.core.errors import RunFolderError
from idiolect.runs.folder import differences, is_taken, new_folder, next_round, require_free, require_same
from idiolect.runs.settings import Config, configure, write_config
from idiolect.runs.store import Store


def test_nothing_and_an_empty_folder_are_free(tmp_path):
    (tmp_path / "empty").mkdir()
    assert not is_taken(tmp_path / "nothing")
    assert not is_taken(tmp_path / "empty")
    assert new_folder(tmp_path / "empty") == tmp_path / "empty"


def test_a_file_and_a_folder_that_holds_something_are_taken(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError, match="exists and is not empty; choose another folder with --out"):
        new_folder(tmp_path)
    with pytest.raises(RunFolderError, match="file is a file; choose another folder with --out"):
        new_folder(tmp_path / "file")
    with pytest.raises(RunFolderError, match=r"exists and holds no tuning; choose another folder with --out$"):
        require_free(tmp_path, "exists and holds no tuning")


def test_what_a_killed_process_left_unfinished_does_not_count(tmp_path):
    (tmp_path / ".config.yaml.part").write_text("method: fed")
    (tmp_path / "lock").touch()
    assert not is_taken(tmp_path)
    (tmp_path / ".hidden").touch()
    assert is_taken(tmp_path)


def test_a_folder_that_holds_a_run_says_how_to_continue_it(tmp_path):
    write_config(Config(), tmp_path / "config.yaml")
    with pytest.raises(RunFolderError, match=f"already holds a run; .* idiolect resume {tmp_path}"):
        new_folder(tmp_path)


def test_differences_name_both_sides_and_leave_out_what_changes_no_result(tmp_path):
    found = differences({"rounds": 3, "cache_mb": 1}, configure({"rounds": 5}), ignore=("seed",))
    assert found == ["rounds: 3 there, 5 now"]
    with pytest.raises(RunFolderError, match=r"holds a run under other settings \(rounds: 3 there, 5 now\)"):
        require_same(tmp_path, "a run", found)
    require_same(tmp_path, "a run", [])


def test_where_a_run_stands(tmp_path):
    method = methods.build("lgfedavg(pretrain=2)")
    assert next_round(None, method) == next_round(tmp_path, method) == -method.needs.setup_rounds
    store = Store(tmp_path / "state.sqlite")
    store.record({"next_round": 4})
    store.close()
    assert next_round(tmp_path, method) == 4
