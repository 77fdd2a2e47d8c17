"""Networks with several inputs train as those that cut the same inputs out of one, bit for bit and on all engines."""

import pytest
import torch
from torch import nn

import idiolect
from idiolect.core.errors import ModelError

METHODS = ("fedavg", "ditto", "fedrep", "lgmix", "pfedgate", "fedrod", "fedem", "flayer(fedavg)")
ENGINES = ("loop", "workers:2", "vector")
TRAINING = {"rounds": 2, "lr": 0.1, "batch_size": 8}


class Two(nn.Module):
    """An image and a table."""

    def __init__(self):
        super().__init__()
        self.see, self.read = nn.Conv2d(1, 2, 3), nn.Linear(8 + 2, 8)
        self.out = nn.Linear(8, 3)

    def forward(self, image, table):
        seen = torch.relu(self.see(image)).flatten(1)
        return self.out(torch.relu(self.read(torch.cat([seen, table], 1))))


class Cut(Two):
    """The same, of one input."""

    def forward(self, x):
        return super().forward(x[:, :16].reshape(-1, 1, 4, 4), x[:, 16:])


def clients():
    draw = torch.Generator().manual_seed(0)
    for n in (12, 20, 9, 30):
        image, table = torch.randn(n, 1, 4, 4, generator=draw), torch.randn(n, 2, generator=draw)
        yield image, table, (table[:, 0] > 0).long() + (image.mean((1, 2, 3)) > 0).long()


def scores(result):
    return result.metrics.select("round", "client", "point", "split", "metric", "value").sort(
        "round", "client", "metric"
    )


def run(method, data, model, engine="loop", **settings):
    torch.manual_seed(0)
    return idiolect.run(method, data, model=model(), engine=engine, **TRAINING | settings)


@pytest.mark.parametrize("method", METHODS)
def test_two_inputs_give_the_bits_of_one(method):
    two = run(method, [({"image": image, "table": table}, y) for image, table, y in clients()], Two)
    one = run(method, [(torch.cat([image.flatten(1), table], 1), y) for image, table, y in clients()], Cut)
    assert scores(two).equals(scores(one))


@pytest.mark.usefixtures("workers_here")
@pytest.mark.parametrize("method", METHODS)
def test_engines_agree_on_two_inputs(method):
    data = [((image, table), y) for image, table, y in clients()]
    first, *others = (scores(run(method, data, Two, engine)) for engine in ENGINES)
    for other in others:
        assert torch.allclose(first["value"].to_torch(), other["value"].to_torch(), atol=1e-4)


class Words(nn.Module):
    """The mean of embeddings, of real words only."""

    def __init__(self):
        super().__init__()
        self.embed, self.out = nn.Embedding(20, 4), nn.Linear(4, 2)

    def forward(self, x, mask):
        return self.out((self.embed(x) * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))


class ByLength(Words):
    def forward(self, words, lengths):
        return super().forward(words, torch.arange(words.shape[1]) < lengths[:, None])


def sentences(extra=0):
    draw = torch.Generator().manual_seed(1)
    for n in (10, 16, 8):
        words = [
            torch.randint(1, 20, (int(torch.randint(1, 6, (), generator=draw)),), generator=draw) for _ in range(n)
        ]
        yield words, torch.tensor([int(sentence[0] > 9) for sentence in words])


@pytest.mark.parametrize("engine", ENGINES)
def test_sequences_come_with_a_mask_or_lengths(engine):
    masked = run("ditto", list(sentences()), Words, engine)
    assert scores(masked).equals(scores(run("ditto", list(sentences()), ByLength, engine)))


def test_longer_padding_changes_nothing():
    first, *rest = sentences()
    short = run("fedavg", [first, *rest], Words)
    longer = run(
        "fedavg", [first, *rest, ([torch.ones(9, dtype=torch.long), torch.ones(1, dtype=torch.long)], [0, 1])], Words
    )
    mine, its = (
        result.metrics.filter(client=0, round=0, metric="loss", split="train")["value"] for result in (short, longer)
    )
    assert torch.allclose(mine.to_torch(), its.to_torch())


@pytest.mark.parametrize("method", ["ditto", "fedem"])
def test_personal_models_take_what_the_network_takes(method):
    data = {f"s{at}": ({"image": image, "table": table}, y) for at, (image, table, y) in enumerate(clients())}
    model = run(method, data, Two).model("s1")
    image, table, _ = list(clients())[1]
    assert torch.equal(model(image=image, table=table), model(image, table))
    words = run(method, list(sentences()), Words).model(0)
    (sentence, *_), _ = next(iter(sentences()))
    alone = words(sentence[None], mask=torch.ones(1, len(sentence), dtype=torch.bool))
    filled = nn.functional.pad(sentence, (0, 1))[None]
    assert torch.allclose(alone, words(filled, mask=filled > 0), atol=1e-6)


class Whole(Two):
    def forward(self, inputs):
        return super().forward(inputs["image"], inputs["table"])


def test_a_network_may_take_all_inputs_as_one_dict(tmp_path):
    data = [({"image": image, "table": table}, y) for image, table, y in clients()]
    assert scores(run("fedavg", data, Whole)).equals(scores(run("fedavg", data, Two)))


def test_models_of_several_inputs_are_exported(tmp_path):
    from idiolect.runs.export import export, personal_of

    data = [({"image": image, "table": table}, y) for image, table, y in clients()]
    result = run("ditto", data, Two, out=tmp_path / "run")
    export(personal_of(result, 0), tmp_path / "model", ["safetensors", "torchscript"])
    image, table, _ = next(iter(clients()))
    traced = torch.jit.load(str(tmp_path / "model/model.pt"))
    assert torch.allclose(traced(image=image, table=table), result.model(0)(image, table), atol=1e-5)
    assert "image [1, 4, 4] float32, table [2] float32" in (tmp_path / "model/card.md").read_text()


def test_inputs_that_a_network_does_not_take_are_refused_by_name():
    data = [({"picture": image, "table": table}, y) for image, table, y in clients()]
    with pytest.raises(ModelError, match=r"the inputs are picture \[1, 4, 4\].* but forward of Two takes image, table"):
        run("fedavg", data, Two)
    with pytest.raises(ModelError, match="mlp takes one input, but the data have several"):
        idiolect.run("fedavg", data, rounds=1)


@pytest.mark.usefixtures("workers_here")
def test_clients_with_classes_of_their_own_share_a_body():
    def net(classes):
        torch.manual_seed(classes)
        return nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, classes))

    data = {
        name: (torch.randn(20, 2), torch.arange(20) % classes) for name, classes in zip("abc", (2, 3, 5), strict=True)
    }
    for engine in ENGINES:
        result = idiolect.run(
            "fedper", data, models=[net(2), net(3), net(5)], model_of=[0, 1, 2], engine=engine, **TRAINING
        )
        bodies = [result.model(name)[0].weight for name in "abc"]
        assert torch.allclose(bodies[0], bodies[1])
        assert torch.allclose(bodies[0], bodies[2])
        assert [result.model(name)[2].out_features for name in "abc"] == [2, 3, 5]
    with pytest.raises(ModelError, match="network 1, of client 'b': the model gives 2 classes, but the data have 3"):
        idiolect.run("fedper", data, models=[net(2), net(2), net(5)], model_of=[0, 1, 2], **TRAINING)
