"""The grand table: equal gradients, all methods, ranks and a page from results alone; and presets from its tuning."""

import copy

import pytest
import yaml

from idiolect.advice import apply_preset
from idiolect.advice.presets import find_kind, read_presets
from idiolect.advice.rules import findings
from idiolect.core.errors import InputError
from idiolect.reproductions import read_claims, reproduce, write_grand, write_ledger
from idiolect.reproductions.files import read_result, result_path, write_result
from idiolect.reproductions.grand import rank_all, read_federations, wins
from idiolect.reproductions.presets import far_options, make_presets, write_presets

COMMON = {"rounds": 4, "eval_every": 1, "engine": "loop", "model": "mlp(hidden=[8])", "data": "digits", "lr": 0.1}
TABLE = {
    "paper": "Grand table",
    "where": "all methods",
    "claim": "Which methods help?",
    "setup": "None.",
    "scaled": "All.",
    "settings": COMMON,
    "methods": ["fedavg", "local", "ditto", "fedmd", "finetune(fedavg)"],
    "tuning": {"values": {"others": ["lr=0.1,0.3"]}},
    "seeds": 2,
    "budget": "gradients",
    "federations": {
        "skew": {
            "where": "digits by labels",
            "kind": "label skew",
            "settings": {"partition": "dirichlet:0.3", "clients": 5, "unseen": 0.2},
        },
        "plain": {"where": "digits", "kind": "natural clients", "settings": {"clients": 4}},
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The table's file, and one federation's result."""
    place = tmp_path_factory.mktemp("grand")
    (place / "grand.yaml").write_text(yaml.safe_dump(TABLE, sort_keys=False))
    claims = read_claims(place)
    result = reproduce(claims["grand-skew"], claims, cache=place / "cache")
    write_result(result, result_path(place, "grand-skew"))
    return place


@pytest.fixture(scope="module")
def result(folder):
    return copy.deepcopy(read_federations(folder)[0][0])


def test_a_file_of_federations_is_a_claim_for_each(folder):
    claims = read_claims(folder)
    assert list(claims) == ["grand-skew", "grand-plain"]
    assert claims["grand-skew"].is_table
    assert claims["grand-skew"].cases[0].settings["model"] == COMMON["model"]
    assert claims["grand-plain"].cases[0].settings["clients"] == 4
    assert "grand" not in write_ledger(folder)["ledger"], "the ledger is of papers' claims"


def test_a_federations_name_is_only_a_name(tmp_path):
    """Its result stays among the results, and no two claims have one name."""
    federation = TABLE["federations"]["plain"]
    table = TABLE | {"federations": {"a/../../../evil": federation, "plain": federation}}
    (tmp_path / "grand.yaml").write_text(yaml.safe_dump(table))
    path = result_path(tmp_path, next(iter(read_claims(tmp_path))))
    assert path.resolve().parent == (tmp_path / "results").resolve()
    (tmp_path / "grand-plain.yaml").write_text(yaml.safe_dump({**TABLE, "federations": None}))
    with pytest.raises(InputError, match=r"grand\.yaml holds the claim 'grand-plain', which another file has"):
        read_claims(tmp_path)


def test_all_have_fedavgs_gradients_and_what_cannot_run_says_why(result):
    costs = {name: entry.gradients for name, entry in result.entries.items()}
    assert costs["ditto"] == pytest.approx(1.0), "two gradients per step, half of the rounds"
    assert costs["local"] == costs["finetune(fedavg)"] == 1.0
    assert "several networks" in result.skipped["fedmd"] or "public" in result.skipped["fedmd"]
    assert "fedmd" not in result.entries


def test_unseen_clients_and_those_below_local_are_counted(result):
    assert 0 <= result.entries["fedavg"].unseen <= 1
    assert result.entries["local"].below_local == 0
    assert 0 < result.entries["fedavg"].below_local <= 1


def test_places_and_wins():
    assert rank_all({"a": 1.0, "b": 3.0, "c": 3.0}) == {"a": 3.0, "b": 1.5, "c": 1.5}


def test_only_differences_beyond_the_spread_over_seeds_are_wins(result):
    names = {"a": (0.9, 0.8, 0.9), "b": (0.7, 0.6, 0.69), "c": (0.7, 0.9, 0.8)}
    entries = {name: copy.copy(result.entries["fedavg"]) for name in names}
    for name, scores in names.items():
        object.__setattr__(entries[name], "scores", scores)
    object.__setattr__(result, "entries", entries)
    assert (wins([result], "a", "b"), wins([result], "b", "a"), wins([result], "a", "c")) == ((1, 0), (0, 1), (0, 0))


def test_the_page_says_what_has_run_and_what_has_not(folder):
    parts = write_grand(folder)
    assert "5 methods" in parts["grand-state"]
    assert "| digits | natural clients | `digits` | 4 | `mlp(hidden=[8])` | not run yet |" in parts["grand-state"]
    assert parts["grand-ranks"].count("\n| `") == 4
    assert parts["svg"].count("<circle") == 4
    assert "`fedmd` has no score on digits by labels" in parts["grand-scores"]


def test_a_result_of_another_definition_is_not_shown(folder, tmp_path):
    (tmp_path / "grand.yaml").write_text(yaml.safe_dump({**TABLE, "seeds": 3}, sort_keys=False))
    old = read_result(result_path(folder, "grand-skew")) | {"definition": "old"}
    write_result(old, result_path(tmp_path, "grand-skew"))
    assert read_federations(tmp_path)[0] == []
    assert "No federation has run yet" in write_grand(tmp_path)["grand-ranks"]


# -- presets ----------------------------------------------------------------------------------------------


def test_presets_are_what_tuning_chose(folder, tmp_path, result):
    made = make_presets(folder)
    assert list(made) == ["label skew"]
    ditto = made["label skew"]["sgd"]["ditto"]
    assert ditto["rates"] == {"grand-skew": ditto["lr"]}
    assert ditto["lr"] in (0.1, 0.3)
    path = tmp_path / "presets.yaml"
    path.write_text(write_presets(folder))
    assert read_presets(path)["label skew", "sgd", "ditto"].lr == ditto["lr"]
    preset = apply_preset("ditto", partition="dirichlet:0.1", path=path)
    assert (preset.method, preset.lr) == ("ditto", ditto["lr"])
    for settings, words in (
        ({"partition": "dirichlet:0.1", "optimizer": "adam"}, "label skew and adam: there is none of any method"),
        ({"partition": "iid"}, "clients that are alike"),
    ):
        with pytest.raises(InputError, match=words):
            apply_preset("ditto", path=path, **settings)
    with pytest.raises(InputError, match=r"no tuned preset of ditto\(lam=0.3\).*there is one of ditto"):
        apply_preset("ditto(lam=0.3)", partition="dirichlet:0.1", path=path)


def test_the_package_has_presets_that_can_be_read(tmp_path):
    assert isinstance(read_presets(), dict)
    (tmp_path / "grand.yaml").write_text(yaml.safe_dump(TABLE, sort_keys=False))
    (tmp_path / "presets.yaml").write_text(write_presets(tmp_path))
    assert read_presets(tmp_path / "presets.yaml") == {}


@pytest.mark.parametrize(
    ("numbers", "kind"),
    [
        ({"natural clients": 1, "feature shift": 0.5, "label skew": 0.9}, "feature shift"),
        ({"natural clients": 1, "feature shift": 0.1, "label skew": 0.0}, "natural clients"),
        ({"natural clients": 0, "feature shift": 0.5, "label skew": 0.2}, "label skew"),
        ({"natural clients": 0, "feature shift": 0.5, "label skew": 0.0}, "feature shift"),
        ({"natural clients": 0, "feature shift": 0.0, "label skew": 0.0}, ""),
    ],
)
def test_what_clients_differ_in_most(numbers, kind):
    assert find_kind(findings(numbers)) == kind


def test_far_from_the_default_is_more_than_twice():
    assert far_options("ditto", "ditto(lam=0.6)") == {}
    assert far_options("fedlag(ditto)", "fedlag(ditto(lam=4))") == {"inner.lam": (1.0, 4.0)}
