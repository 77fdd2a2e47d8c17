"""Whole runs on data that are read late, and with transforms: the same whatever the engine, the cache, and stops."""

import numpy as np
import pytest
import torch
import yaml
from torch import nn
from torch.utils.data import Dataset

import idiolect
from idiolect.data import samples

TRANSFORM = "crop(2), flip, jitter, rotate, erase, normalize"
SETTINGS = {"rounds": 3, "local_epochs": 2, "batch_size": 4, "lr": 0.1, "seed": 3, "engine": "loop"}


class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(108, 2))


class Noisy(Dataset):
    def __init__(self, x, y, noise):
        self.x, self.y, self.noise = x, y, noise

    def __len__(self):
        return len(self.x)

    def __getitem__(self, number):
        return self.x[number] + (self.noise * torch.randn(self.x[number].shape) if self.noise else 0), self.y[number]


def arrays(size, seed):
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.random((size, 1, 8, 8), dtype=np.float32)), torch.arange(size) % 2


def clients(noise=0.0):
    parts = {name: [arrays(size, at + 9 * s) for s, size in enumerate((n, 3, 3))] for at, (name, n) in enumerate(SIZES)}
    return {
        name: {split: Noisy(*part, noise * (split == "train")) for split, part in zip(samples_of, three, strict=True)}
        for samples_of in [("train", "val", "test")]
        for name, three in parts.items()
    }


SIZES = (("ä b", 9), ("two", 6), ("one", 1))


def weights(result):
    return [leaf for name, _ in SIZES for leaf in result.model(name).state_dict().values()]


def run(noise=0.0, module=Net, **settings):
    torch.manual_seed(0)
    return idiolect.run("fedper", clients(noise), model=module(), **{**SETTINGS, **settings})


def same(one, other):
    pairs = list(zip(weights(one), weights(other), strict=True))
    return all(torch.equal(a, b) for a, b in pairs) and one.metrics.equals(other.metrics)


def test_data_that_are_read_late_give_the_same_bits_as_data_in_memory(monkeypatch):
    for transform in (None, TRANSFORM):
        held = run(transform=transform)
        monkeypatch.setattr(samples, "LARGE", 0)
        for megabytes in (0, 1):
            late = run(transform=transform, sample_cache_mb=megabytes)
            assert late.plan.data.clients[0].late
            assert same(held, late)
        monkeypatch.undo()


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_engines_see_the_same_random_numbers(noise):
    plain = lambda: nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 2))  # noqa: E731
    loop, *others = (
        run(noise, plain, transform=TRANSFORM, engine=engine)
        for engine in ("loop", "workers(count=2)", "vector(count=1)")
    )
    for other in others:
        torch.testing.assert_close(weights(other), weights(loop), rtol=1e-4, atol=1e-5)
    assert not same(loop, run(noise, plain))


def test_a_run_that_was_stopped_goes_on_bit_for_bit(tmp_path):
    whole = run(0.5, transform=TRANSFORM)

    def stop(progress):
        if progress.round == 1:
            raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"):
        run(0.5, transform=TRANSFORM, out=tmp_path / "a", watch=stop)
    torch.manual_seed(0)
    rest = idiolect.resume(tmp_path / "a", data=clients(0.5), model=Net())
    assert same(whole, rest)
    written = yaml.safe_load((tmp_path / "a" / "config.yaml").read_text())
    assert written["transform"] == TRANSFORM


def test_other_transforms_make_another_run(tmp_path):
    _ = run(transform=[abs], out=tmp_path / "a", rounds=1)
    torch.manual_seed(0)
    with pytest.raises(idiolect.InputError, match="the code of the transform has changed"):
        idiolect.resume(tmp_path / "a", data=clients(), model=Net(), transform=[torch.neg])
    assert idiolect.Config(transform="flip").hash != idiolect.Config().hash == idiolect.Config(sample_cache_mb=1).hash


class Spy(nn.Module):
    """Notes the top left pixel of what it sees, apart for training and prediction."""

    seen = {True: [], False: []}  # noqa: RUF012

    def __init__(self):
        super().__init__()
        self.tell = nn.Linear(64, 2)

    def forward(self, x):
        self.seen[torch.is_grad_enabled()] += x[:, 0, 0, 0].tolist()
        return self.tell(x.flatten(1))


@pytest.mark.parametrize("large", [0, 1 << 30])
def test_training_samples_meet_random_transforms_in_every_pass_and_no_others(monkeypatch, large):
    monkeypatch.setattr(samples, "LARGE", large)
    monkeypatch.setattr(Spy, "seen", {True: [], False: []})
    left = torch.zeros(1, 1, 8, 8)
    left[..., :4] = 1
    data = {name: {s: Noisy(left.expand(n, -1, -1, -1), torch.zeros(n).long(), 0) for s in ("train", "val", "test")}
            for name, n in (("a", 5), ("b", 3))}  # fmt: skip
    settings = {**SETTINGS, "local_epochs": 2, "rounds": 3}
    idiolect.run("fedavg", data, model=Spy(), transform="flip(p=1)", **settings)
    assert Spy.seen[True].count(0) == 2 * 3 * (5 + 3)  # turned over
    assert Spy.seen[False].count(0) == 0
    assert Spy.seen[False].count(1) >= 3 * 2 * (5 + 3)
