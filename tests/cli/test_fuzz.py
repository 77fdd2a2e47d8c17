"""Whatever is written for a setting, a command ends with a sentence and no stack trace."""

import random
import string

import pytest

from idiolect.core.errors import TrainingError
from idiolect.core.options import options_of
from idiolect.runs.settings import Config

SEEDS = [
    "fedavg", "fedprox(mu=0.1)", "fedlag(ditto(lam=1), k=3)", "dirichlet:0.1", "step(at=[0.5, 0.75])", "linear",
    "mlp(hidden=[64])", "2001-13-45", "0x_", "0.6 0.2 0.2", "a b c", "1e999", "nan", "inf", "-1", str(2**64), "[[[[",
    "'", "{a: 1}", "&a *a", "!!python/object/apply:os.system [x]", "csv(x.csv, client=a)", "npz:no", "folder:no", "²",
    "file:x.json", "cuda:99", "meta", "0o9", "1:2:3", "~", "null", "=", "?", "- - -", "x.py:Y", "\x1b[31m", "a\nb",
    "\udc80", "1_000", "0b2", "12:30:45", "digits", "iid", "mse", "accuracy, auc", "sgd(momentum=0.9)", "loop", "0.5",
]  # fmt: skip
SETTINGS = [name for name in options_of(Config) if name not in ("initial", "rounds", "local_epochs")]


def mutate(draw, text):
    for _ in range(draw.randrange(4)):
        at = draw.randrange(len(text) + 1)
        kind = draw.randrange(4)
        if kind == 0:
            text = text[:at] + draw.choice(string.printable + "é²\0\u202e") + text[at:]
        elif kind == 1:
            text = text[:at] + text[at + 1 :]
        elif kind == 2:
            text = text[:at] + draw.choice(SEEDS) + text[at:]
        else:
            text = text[:at] + text[at:][::-1]
    return text


def check(call, *words):
    """Run a command, which may work, and must not break."""
    status, out, err = call(*words)
    assert status in (0, 1, 2), (words, status, err)
    assert "Traceback" not in err + out, words
    assert all(char.isprintable() or char == "\n" for char in err), (words, err)
    if status:
        first = [line for line in err.splitlines() if line.startswith("error: ")]
        assert len(first) == 1, (words, err)
    return status


def draw_words(draw):
    """A setting with a text that hardly fits it."""
    text = mutate(draw, draw.choice(SEEDS)).replace("\0", "")
    name = draw.choice(SETTINGS)
    if draw.random() < 0.2:
        return ["-o", f"method.{draw.choice(['mu', 'k', 'inner', 'x y'])}={text}"]
    return [f"--{name.replace('_', '-')}", text] if draw.random() < 0.7 else ["-o", f"{name}={text}"]


@pytest.fixture
def no_training(monkeypatch):
    """Everything but training, in whose place every run ends."""

    def end(*_):
        raise TrainingError("this is as far as it goes")

    monkeypatch.setattr("idiolect.runs.api.carry_out", end)


@pytest.mark.parametrize("seed", range(3))
def test_no_text_breaks_a_command(call, no_training, seed):
    draw = random.Random(seed)
    for number in range(40):
        words = draw_words(draw)
        settings = [] if "clients" in words[0] + words[1] else ["--clients", "2"]
        settings += [] if "model" in words[0] + words[1] else ["--model", "linear"]
        assert check(call, "run", "--out", f"a{number}", *settings, *words)


@pytest.mark.parametrize("text", SEEDS)
def test_a_file_of_settings_with_any_text_breaks_nothing(call, no_training, folder, text):
    for name in ("method", "partition", "split", "rounds"):
        (folder / "a.yaml").write_bytes(f"clients: 2\n{name}: {text}\n".encode(errors="surrogatepass"))
        assert check(call, "run", "a.yaml")
