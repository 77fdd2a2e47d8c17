"""Advice: measured on training data, verified on validation data, and blind to test data."""

from dataclasses import replace

import pytest
import torch

import idiolect
from idiolect.advice import advise
from idiolect.advice.api import REFERENCES, Study
from idiolect.advice.race import Place, Race
from idiolect.advice.rules import FAMILIES
from idiolect.core.errors import InputError
from idiolect.data import load
from idiolect.runs.settings import configure

QUICK = {"clients": 5, "rounds": 3, "engine": "loop", "model": "mlp(hidden=[8])"}


def levels(advice):
    return {each.scale.name: each.level for each in advice.findings}


def federation(kind):
    """Eight clients of four classes, different in one way alone."""
    rng = torch.Generator().manual_seed(0)
    centres = 3 * torch.randn(4, 10, generator=rng)
    clients = []
    for client in range(8):
        samples = 30 * 2**client if kind == "quantity skew" else 120
        odds = torch.ones(4)
        odds[client % 4] = 20.0 if kind == "label skew" else 1.0
        y = torch.multinomial(odds, samples, replacement=True, generator=rng)
        x = centres[y] + torch.randn(samples, 10, generator=rng)
        x = x + 2 * torch.randn(10, generator=rng) if kind == "feature shift" else x
        y = (y + 2 * (client % 2)) % 4 if kind == "concept shift" else y
        clients.append((x, y))
    return clients


def shallow():
    """A network of one hidden layer."""
    return torch.nn.Sequential(torch.nn.Linear(10, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))


def deep():
    """A network of four hidden layers, without normalisation."""
    hidden = [layer for _ in range(3) for layer in (torch.nn.Linear(8, 8), torch.nn.ReLU())]
    return torch.nn.Sequential(torch.nn.Linear(10, 8), torch.nn.ReLU(), *hidden, torch.nn.Linear(8, 4))


@pytest.mark.parametrize("kind", ["label skew", "feature shift", "concept shift", "quantity skew", "nothing"])
def test_the_one_way_in_which_clients_differ_is_named(kind):
    advice = advise(federation(kind), model=shallow(), rounds=3, engine="loop", race=False)
    found = levels(advice)
    for each in ("label skew", "feature shift", "concept shift", "quantity skew"):
        assert found[each] == ("strong" if each == kind else "none"), each
    assert (advice.recommended[0].method == "fedavg") == (kind in ("quantity skew", "nothing"))


def test_what_the_partition_does_is_what_is_found():
    assert levels(advise(partition="iid", race=False, **QUICK))["label skew"] == "none"
    assert levels(advise(partition="pathological:2", race=False, **QUICK))["label skew"] == "strong"
    assert levels(advise(partition="feature", race=False, **QUICK))["feature shift"] == "strong"


def test_three_methods_one_of_each_family_and_the_references_race():
    advice = advise([(torch.rand(20, 5), torch.full((20,), label)) for label in range(3)], rounds=3, engine="loop")
    assert len(advice.recommended) == 3
    raced = {each.method for each in advice.race.places}
    assert raced >= {each.method for each in advice.recommended} | set(REFERENCES)
    for family in FAMILIES:
        assert bool(raced & set(family.members)) == (family.name != "normalisation"), family.name
    assert advice.best == advice.race.places[0].method
    assert advice.best in advice.sentence


def test_without_a_race_the_advice_says_so():
    advice = advise(race=False, **QUICK)
    assert advice.race is None
    assert "no race has verified" in str(advice)


def spoiled(data):
    """The same federation, with other test data."""
    return replace(
        data,
        clients=tuple(
            replace(
                each,
                x=each.x.index_fill(0, each.test.long(), 99.0),
                y=each.y.index_fill(0, each.test.long(), 0),
            )
            for each in data.clients
        ),
    )


def test_test_data_change_nothing():
    data = load([(torch.rand(20, 5), torch.arange(20) % 3) for _ in range(3)])
    named = {"rounds": 3, "engine": "loop"}
    first, second = (advise(each, **named) for each in (data, spoiled(data)))
    assert [e.value for e in first.findings] == [e.value for e in second.findings]
    assert [(e.method, e.score) for e in first.race.places] == [(e.method, e.score) for e in second.race.places]


def test_own_clients_and_models_regression_and_tokens():
    numbers = [(torch.rand(40, 3), torch.rand(40)) for _ in range(4)]
    assert advise(numbers, model=torch.nn.Linear(3, 1), race=False, rounds=2).recommended
    words = [(torch.randint(0, 30, (40, 6)), torch.arange(40) % 2) for _ in range(4)]
    model = torch.nn.Sequential(torch.nn.EmbeddingBag(30, 4), torch.nn.Linear(4, 2))
    assert advise(words, model=model, race=False, rounds=2).recommended


def test_a_method_that_cannot_run_here_is_left_out_and_named(monkeypatch):
    from idiolect.advice import api as module
    from idiolect.advice.rules import Recommendation, Rule

    rule = Rule("fedmd", 9, {}, "it would be good")
    known = module.recommend
    monkeypatch.setattr(module, "recommend", lambda measured: (Recommendation("fedmd", (rule,)), *known(measured)))
    advice = advise(race=False, **QUICK)
    assert "fedmd" not in [each.method for each in advice.recommended]
    assert "public" in advice.skipped["fedmd"]
    assert len(advice.recommended) == 3


def test_the_sentence_says_by_how_much_and_when_it_is_not_sure():
    """Over four clients 0.3 is more than chance; 0.005, and what differs in both directions, are not."""
    advice = advise(race=False, **QUICK)

    def place(name, rung, *scores):
        return Place(name, sum(scores) / len(scores), rung, 9, 9, 1.0, scores)

    first, far = place("a", 2, 0.9, 0.9, 0.92, 0.88), place("d", 2, 0.6, 0.61, 0.62, 0.6)
    near, mixed = place("b", 2, 0.895, 0.895, 0.915, 0.875), place("c", 2, 1.0, 0.5, 1.0, 0.5)
    open_race = replace(advice, race=Race((first, near, mixed, far), "accuracy", "higher", "steps"))
    assert open_race.sentence == (
        "Use a: it won with a validation accuracy of 90.00 %, 0.50 points ahead of b. This is not sure: over these"
        " clients it cannot be told from b, c; compare with several seeds."
    )
    won = replace(advice, race=Race((first, far, place("e", 1, 0.9, 0.9, 0.9, 0.9)), "accuracy", "higher", "steps"))
    assert won.sentence == "Use a: it won with a validation accuracy of 90.00 %, 29.25 points ahead of d."
    assert (open_race.sure, won.sure, advice.sure) == (False, True, False)
    assert open_race.as_dict()["sure"] is False


def test_as_plain_values():
    held = advise(race=False, **QUICK).as_dict()
    assert {"name", "value", "level", "some", "strong", "meaning"} == set(held["findings"][0])
    assert held["race"] is None


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"budget": "euros"}, "gradients, rounds"), ({"rounds": 0}, "at least 1"), ({"race_": 1}, "no setting 'race_'")],
)
def test_bad_input_gets_a_sentence(wrong, said):
    with pytest.raises(InputError, match=said):
        advise(**{"clients": 3, **wrong})


def test_validation_data_are_needed():
    with pytest.raises(InputError, match="no validation data"):
        Study(configure({"split": [0.8, 0.0, 0.2], "clients": 4}), {})


def test_it_is_public():
    assert idiolect.advise is advise


def named(data, **settings):
    return [each.method for each in advise(data, rounds=3, engine="loop", race=False, **settings).recommended]


def test_flayer_is_named_where_labels_are_skewed_and_the_model_is_deep():
    assert "flayer(fedavg)" in named(federation("label skew"), model=deep())


def test_lgmix_is_named_where_inputs_are_shifted():
    assert "lgmix" in named(federation("feature shift"), model=shallow())


def test_fedlag_is_named_where_updates_conflict_below_the_head():
    advice = advise(federation("concept shift"), model=shallow(), rounds=3, engine="loop", race=False)
    assert levels(advice)["body conflict"] == "strong"
    assert "fedlag(fedavg)" in [each.method for each in advice.recommended]
    assert "fedlag(fedavg)" not in named(federation("label skew"), model=shallow())


def test_fedfac_is_named_for_many_natural_clients_that_differ():
    few = federation("label skew")
    many = {f"{copy} {name}": client for copy in range(7) for name, client in enumerate(few)}
    assert "fedfac" in named(many, model=shallow())
    assert "fedfac" not in named(few, model=shallow())


def test_pfedgate_is_named_with_the_budgets_that_clients_have():
    data = federation("label skew")
    assert named(data, model=deep(), budgets=(0.3, 1.0))[:2] == ["pfedgate(s=[0.3, 1.0])", "heterofl(rates=[0.3, 1.0])"]
    assert "pfedgate" not in " ".join(named(data, model=deep()))
    with pytest.raises(InputError, match="a budget is the share of the model that a client can compute"):
        advise(data, budgets=(0.5, 1.5), race=False)
