"""The command line as a whole: help, errors and the installed command."""

import io
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
from rich.console import Console

import idiolect
from idiolect.cli import app, main, screen
from idiolect.cli.completion import complete_setting
from idiolect.comparison.budget import BUDGETS
from idiolect.core.options import options_of
from idiolect.runs.export import FORMATS
from idiolect.runs.settings import Config

COMMANDS = [
    *("demo", "advise", "run", "compare", "resume", "tune", "watch", "report", "figures"),
    *("export", "deploy", "methods", "data", "models", "partition"),
]


def test_without_arguments_the_help_is_shown(call):
    code, out, _ = call()
    assert code == 0
    for name in COMMANDS:
        assert f" {name} " in out


@pytest.mark.parametrize("flag", ["--version", "-v"])
def test_version(call, flag):
    assert call(flag) == (0, f"idiolect {idiolect.__version__}\n", "")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_teaches_by_example(call, command):
    code, out, _ = call(command, "--help")
    assert code == 0
    assert "Example" in out
    assert f"idiolect {command}" in out.partition("Example")[2]


def test_options_are_those_of_the_settings(call):
    _, out, _ = call("run", "--help")
    words = " ".join(out.replace("│", " ").split())
    for name, info in options_of(Config).items():
        assert f"--{name.replace('_', '-')} " in words
        assert info.limits.help.split(";")[0][:30] in words
    assert "default 50" in words
    assert "in (0, 1]" in words


@pytest.mark.parametrize(
    ("typed", "proposed"),
    [("re", {"resume", "reproduce", "report"}), ("run fedp", {"fedpac", "fedper", "fedprox"})],
)
def test_a_shell_completes_commands_and_methods(call, monkeypatch, typed, proposed):
    monkeypatch.setenv("_IDIOLECT_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"idiolect {typed}")
    monkeypatch.setenv("COMP_CWORD", str(len(typed.split())))
    assert set(call()[1].split()) == proposed


def test_a_shell_completes_the_choices_of_settings():
    complete = complete_setting(options_of(Config)["weighting"])
    assert complete("") == ["samples", "uniform"]
    assert complete("u") == ["uniform"]
    assert complete_setting(options_of(Config)["lr"]) is None


BAD = {
    "unknown method": (["run", "-m", "fedprx"], "Did you mean fedprox"),
    "unknown option of a method": (["run", "-m", "fedprox(nu=1)"], "fedprox has no option 'nu'. Did you mean mu?"),
    "unknown option in an override": (["run", "-m", "fedprox", "-o", "method.nu=1"], "Did you mean mu?"),
    "option out of range": (["run", "-m", "fedprox(mu=-1)"], "mu must lie in [0, inf)"),
    "setting out of range": (["run", "--participation", "1.5"], "participation must lie in (0, 1]"),
    "setting of the wrong kind": (["run", "--rounds", "many"], "'many' is not a valid int"),
    "unknown setting": (["run", "-o", "rouns=3"], "Did you mean rounds"),
    "unknown flag": (["run", "--metod", "fedavg"], "--metod"),
    "unknown command": (["runn"], "runn"),
    "override without a value": (["run", "-o", "rounds"], "has no '='"),
    "unknown data": (["run", "-d", "digit"], "Did you mean digits"),
    "unknown partition": (["run", "--partition", "dirichle:0.1"], "Did you mean dirichlet"),
    "partition out of range": (["run", "--partition", "dirichlet:-1"], "alpha"),
    "unknown model": (["run", "--model", "mlpp"], "Did you mean mlp"),
    "unknown engine": (["run", "--engine", "warp"], "there is no engine 'warp'"),
    "unusable device": (["run", "--device", "gpuu"], "device='gpuu' cannot be used"),
    "too many clients": (["run", "--clients", "5000"], "1797 samples cannot be dealt to 5000 clients"),
    "shares that are none": (["run", "--split", "0.5,0.2"], "three shares"),
    "missing data": (["run", "-d", "mnist"], "$IDIOLECT_DATA/mnist"),
    "open bracket": (["run", "-m", "fedprox(mu=1"], "bracket"),
    "missing file": (["run", "none.yaml"], "there is no configuration file none.yaml"),
    "method where a file belongs": (["tune", "fedavg"], "--methods fedavg"),
    "unknown method in its place": (["run", "fedvag"], "or fedavg"),
    "method given twice": (["run", "fedavg", "--method", "ditto"], "the method is given twice"),
    "missing initial weights": (["run", "--initial", "none.safetensors"], "none.safetensors"),
    "no methods": (["compare"], "--methods"),
    "unknown method of several": (["compare", "-m", "fedavg,fedprx"], "Did you mean fedprox"),
    "baseline that does not run": (["compare", "-m", "fedavg,local", "--baseline", "ditto"], "not among the methods"),
    "override of one of several": (["compare", "-m", "fedprox", "-o", "method.mu=1"], "write options in --methods"),
    "no jobs": (["compare", "-m", "fedavg", "--jobs", "0"], "0 is not in the range"),
    "seeds that are none": (["compare", "-m", "fedavg", "--seeds", "x"], "how many, as in 3"),
    "nothing to resume": (["resume", "nowhere"], "there is no folder nowhere"),
    "unknown method to show": (["methods", "dito"], "Did you mean ditto"),
    "unknown data to show": (["data", "minst"], "Did you mean mnist"),
    "picture of an unknown kind": (["partition", "--picture", "x.bmp"], ".png"),
    "picture in a missing folder": (["partition", "--picture", "no/x.png"], "no/x.png cannot be written"),
    "groups that are not there": (["partition", "--partition", "group"], "no natural groups"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_red_sentence_and_writes_nothing(call, folder, case):
    arguments, message = BAD[case]
    code, _, err = call(*arguments)
    assert code == 2
    assert err.startswith("error: ")
    assert message in err
    assert "Traceback" not in err
    assert list(folder.iterdir()) == []


def test_debug_shows_where_it_happened(capsys):
    with pytest.raises(idiolect.InputError):
        main(["run", "-m", "fedprx", "--debug"])
    with pytest.raises(idiolect.InputError):
        main(["--debug", "run", "-m", "fedprx"])


def test_the_installed_command(folder):
    """As a user calls it: through the entry point, with a closed pipe behind it."""
    command = [sys.executable, "-c", "from idiolect.cli import main; main()"]
    found = subprocess.run([*command, "run", "-m", "fedprx"], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (2, "")
    assert len(found.stderr.splitlines()) == 1
    piped = subprocess.run(
        f"'{sys.executable}' -c 'from idiolect.cli import main; main()' methods --json | head -n 1",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (piped.stdout, piped.stderr) == ("[\n", "")


def test_python_m_is_the_command(folder):
    """It takes no library from the folder that it is called in."""
    (folder / "typer.py").write_text("open('ran', 'w')")
    found = subprocess.run([sys.executable, "-m", "idiolect", "--version"], capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout.split()[0], found.stderr) == (0, "idiolect", "")
    assert not (folder / "ran").exists()


def test_help_names_what_can_be_chosen_elsewhere(call):
    """Help is shown without PyTorch, so these lists are written there once more."""
    assert f"Split at commas: {', '.join(FORMATS)}." in " ".join(call("export", "--help")[1].replace("│", "").split())
    assert "|".join(BUDGETS) in call("advise", "--help")[1]


def test_a_command_is_suggested_once(call):
    code, _, err = call("model")
    assert code == 2
    assert err.count("Did you mean") == 1


class Said(Exception):
    """In the place of what is said."""


def test_every_command_that_needs_pytorch_says_that_it_loads_it_first(monkeypatch):
    def say():
        raise Said

    monkeypatch.setattr(screen, "load_torch", say)
    for each in app.app.registered_commands:
        if each.callback not in app.LIGHT:
            with pytest.raises(Said):
                each.callback()


def test_loading_is_said_before_it_begins(monkeypatch):
    text, heard = io.StringIO(), []
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(screen, "ERR", Console(file=text, force_terminal=True))
    monkeypatch.delitem(sys.modules, "torch")
    importing = SimpleNamespace(import_module=lambda name: heard.append((name, "loading PyTorch" in text.getvalue())))
    monkeypatch.setattr(screen, "importlib", importing)
    screen.load_torch()
    assert heard == [("torch", True), ("idiolect.runs", True)]


def test_a_terminal_breaks_long_errors_between_words(monkeypatch):
    text = io.StringIO()
    monkeypatch.setattr(screen, "ERR", Console(file=text, force_terminal=True, no_color=True, width=40))
    screen.complain("there is no data source 'nope'. Known: ag-news, camelyon17, cifar10, cifar100, csv")
    lines = re.sub(r"\x1b\[[\d;]*m", "", text.getvalue()).splitlines()
    assert max(map(len, lines)) <= 40
    assert " ".join(line.strip() for line in lines).endswith("camelyon17, cifar10, cifar100, csv")


def test_a_long_name_in_a_table_is_broken_inside_its_brackets(monkeypatch, capsys):
    monkeypatch.setattr(screen, "OUT", Console(highlight=False, width=50))
    method = "fedlag(flayer(ditto(lam=0.25)))"
    screen.show_table(
        ("method", "selected", "MB"), [(method, "78.06 ± 67.06", "0.112"), ("local", "76.53 ± 72.35", "0.0")]
    )
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert any(line.startswith("fedlag(flayer(ditto(") for line in lines)
    assert "lam=0.25)))" in lines
    assert max(map(len, lines)) <= 50
