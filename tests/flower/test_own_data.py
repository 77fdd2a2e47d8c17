"""Clients that read their own data by themselves: what the simulation gives, to the bit."""

import logging
from types import SimpleNamespace

import pytest
import torch

import idiolect
from idiolect.core.errors import InputError
from idiolect.data import load
from idiolect.flower.apps import handle_request
from idiolect.flower.client import introduce, report_problems
from idiolect.flower.loopback import LoopbackTransport
from idiolect.flower.personal import load_personal_model
from idiolect.flower.project import Project
from idiolect.flower.server import serve
from idiolect.flower.settings import read_settings

SITE = '''
import polars as pl
import torch
from torch import nn

from idiolect.data import load, table


def draw(client, samples):
    return torch.Generator().manual_seed(client), samples + 2 * client


def several(client: int):
    """An image and sequences of words; labels are text, and no client has all of them."""
    rng, n = draw(client, 10)
    lengths = torch.randint(1, 3 + client, (n,), generator=rng).tolist()
    words = [torch.randint(0, 5 + client, (length,), generator=rng) for length in lengths]
    labels = ["stage 2", "stage 10"] if client else ["stage 1", "stage 2"]
    x = {"image": torch.randn(n, 1, 2, 2, generator=rng), "text": {"words": words}}
    return x, [labels[at % 2] for at in range(n)]


class Both(nn.Module):
    def __init__(self, outputs, vocabulary):
        super().__init__()
        self.embed, self.see, self.tell = nn.Embedding(vocabulary, 3), nn.Linear(4, 3), nn.Linear(6, outputs)

    def forward(self, image, text):
        words = text["words"]
        return self.tell(torch.cat([self.see(image.flatten(1)), self.embed(words).mean(1)], 1))


def frame(client: int, scale: str = "federated", gaps: str = "mean"):
    """A table of which each client has its own values, gaps and classes."""
    n = 12 + client
    ages = [None if client == 1 and at == 3 else 30.0 + client * at for at in range(n)]
    kinds = [f"kind {(client + at) % (2 + client)}" for at in range(n)]
    died = [("yes", "no", "unknown")[at % (2 + (client == 2))] for at in range(n)]
    rows = pl.DataFrame({"age": ages, "kind": kinds, "old": [at % 3 == 0 for at in range(n)], "died": died})
    return table(rows, target="died", encode="onehot", scale=scale, gaps=gaps)


def visits(client: int):
    """A table with texts and lists, whose words, lengths and gaps are each client's own."""
    n = 12 + client
    notes = [f"better word{at % (3 + client)}" if at % 2 else "worse" for at in range(n)]
    beats = [[0.5 + at] * (1 + (at + client) % (2 + client)) for at in range(n)]
    ages = [None if client == 2 and at == 1 else 1000.0 + client * at for at in range(n)]
    died = [("yes", "no")[at % 2] for at in range(n)]
    rows = pl.DataFrame({"age": ages, "note": notes, "ecg": beats, "died": died})
    return table(rows, target="died", encode="words", scale="federated", gaps="mean")


class Visit(nn.Module):
    def __init__(self, outputs, vocabulary):
        super().__init__()
        self.embed, self.tell = nn.Embedding(vocabulary, 3), nn.Linear(3 + 1 + 2, outputs)

    def forward(self, columns, note, ecg, note_mask):
        words = (self.embed(note) * note_mask[..., None]).sum(1)
        return self.tell(torch.cat([columns, ecg.mean(1, keepdim=True), words], 1))


def kinds(client: int, own: bool = True):
    """Names that are each client's own: two, three and two."""
    rng, n = draw(client, 12)
    names = [["cat", "dog"], ["oak", "ash", "elm"], ["dog", "owl"]][client]
    return load([(torch.randn(n, 4, generator=rng), [names[at % len(names)] for at in range(n)])], labels="own")


def kinds_of_table(client: int):
    names = [["cat", "dog"], ["oak", "ash", "elm"], ["dog", "owl"]][client]
    rows = pl.DataFrame({"age": [at * 1.0 for at in range(12)], "kind": [names[at % len(names)] for at in range(12)]})
    return table(rows, target="kind", labels="own", scale="federated")


def sizes(client: int):
    """Two numbers to predict, with names."""
    rows = pl.DataFrame({"age": [at * 1.0 for at in range(9)], "height": [1.0] * 9, "weight": [client * 1.0] * 9})
    return table(rows, target=("height", "weight"))


def plain(client: int):
    """Numbers to predict, without splits of their own."""
    rng, n = draw(client, 12)
    x = torch.randn(n, 3, generator=rng)
    return x, x.sum(1)


def other(client: int):
    return (torch.ones(8, 4 if client == 2 else 3), torch.ones(8))
'''


class Machines(LoopbackTransport):
    """Clients that forget everything between two messages, as Flower's do."""

    def __init__(self, settings, folder, project, n_clients=3):
        def answer(index):
            node = {"client": index, "folder": str(folder / str(index))}
            context = SimpleNamespace(run_config=settings, node_config=node)
            return lambda request: report_problems(lambda r: handle_request(project, r, index, context), request, index)

        super().__init__({index: SimpleNamespace(handle=answer(index)) for index in range(n_clients)})


def deploy(settings, folder, project=None):
    settings = {"clients": 3, "rounds": 2, "lr": 0.1, "federation": "here", "wait": 5.0, "timeout": 5.0} | settings
    config, deployment = read_settings(settings)
    (folder / "server").mkdir(exist_ok=True)
    project = project or Project()
    return serve(Machines(settings, folder, project), project, config, deployment, folder / "server")


@pytest.fixture
def site(tmp_path):
    (tmp_path / "site.py").write_text(SITE)
    return f"{tmp_path}/site.py"


CASES = {
    "several": {"data": "several", "model": "Both", "method": "fedper"},
    "table": {"data": "frame", "method": "ditto"},
    "own scale": {"data": "frame(scale=client, gaps=mean)", "method": "fedavg", "unseen": 0.3},
    "plain": {"data": "plain", "method": "fedavg"},
    "words and lists": {"data": "visits", "model": "Visit", "method": "ditto"},
    "own labels": {"data": "kinds", "method": "fedper", "unseen": 0.3},
    "own labels, known by name": {"data": "kinds", "method": "gpfl"},
    "own labels of tables": {"data": "kinds_of_table", "method": "local"},
    "several targets": {"data": "sizes", "method": "fedavg"},
}


@pytest.mark.parametrize("case", CASES)
def test_clients_that_read_their_own_data_equal_the_simulation(case, site, tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    settings = CASES[case] | {name: f"{site}:{CASES[case][name]}" for name in ("data", "model") if name in CASES[case]}
    said = (
        {"classes": 9} if case in ("several", "table", "own labels", "own labels, known by name") else {}
    )  # which counts for labels without names alone
    there = deploy(settings | said, tmp_path)
    assert not [each for each in caplog.messages if "refused" in each or "admitted" in each]
    here = idiolect.run(**{"clients": 3, "rounds": 2, "lr": 0.1, "engine": "loop"} | settings)
    mine, its = here.metrics.drop("name", strict=False), there.metrics.drop("name", strict=False)
    assert mine.sort(mine.columns).equals(its.sort(its.columns))
    for facts in ("names", "labels"):
        assert there.summary.get(facts) == here.summary.get(facts)
    for index in range(3):
        model = load_personal_model(tmp_path / str(index) / "here")
        for name, leaf in model.personal["params"].items():
            assert torch.equal(leaf, here.personal_slots(index)["params"][name])
    assert deploy(settings | said, tmp_path).metrics.equals(there.metrics), "a server that is started again goes on"


def test_a_client_whose_data_are_of_another_kind_is_refused(site, tmp_path, caplog):
    result = deploy({"data": f"{site}:other", "method": "fedavg", "quorum": 0.5}, tmp_path)
    assert "client 2: its inputs are of shape [4] and type float32, those of the others of shape [3]" in caplog.text
    assert result.summary["rounds_done"] == 2


def test_own_labels_are_refused_by_methods_that_average_heads_in_a_deployment_too(site, tmp_path, caplog):
    with pytest.raises(InputError, match="averages the output layer"):
        deploy({"data": f"{site}:kinds", "method": "fedavg"}, tmp_path)


def test_a_function_for_one_client_needs_their_number(site):
    with pytest.raises(InputError, match="say how many clients there are, as in clients=3"):
        idiolect.run("fedavg", f"{site}:plain", rounds=1)


def test_a_client_with_too_much_to_tell_is_told_so(monkeypatch):
    monkeypatch.setattr("idiolect.flower.client.LONGEST", 10)
    with pytest.raises(InputError, match="has too many different words or values of text"):
        introduce(load([(torch.ones(9, 1), ["yes", "no", "no"] * 3)]), 0)


def test_own_functions_of_an_app_give_tables(tmp_path):
    def load_data(client):
        (tmp_path / f"{client}.csv").write_text("age,died\n" + "".join(f"{at},{at % 2}\n" for at in range(8)))
        return f"csv({tmp_path}/{client}.csv, client=none, target=died, scale=federated)"

    result = deploy({"method": "fedavg"}, tmp_path, Project(load_data))
    assert result.summary["names"] == {"classes": ["0", "1"], "features": ["age"]}
