"""One expression language for methods, data, partitions and networks."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from idiolect.contract.method import methods
from idiolect.core.errors import InputError, OptionError, UnknownNameError
from idiolect.core.expressions import parse, split, value
from idiolect.core.options import OptionInfo, Options, option, options_of
from idiolect.core.registry import Registry, describe, override
from idiolect.methods.ditto import Ditto
from idiolect.methods.fedprox import FedProx
from idiolect.methods.finetune import FineTune


def test_names_options_and_what_is_wrapped():
    assert methods.build("fedprox(mu=0.5)") == FedProx(mu=0.5)
    assert methods.build("finetune(ditto(lam=2), epochs=3)") == FineTune(inner=Ditto(lam=2.0), epochs=3)
    assert methods.build("finetune") == FineTune()


@pytest.mark.parametrize("word", ["none", "None", "null"])
def test_nothing_is_written_as_help_and_errors_call_it(word):
    assert methods.build(f"flayer(lr_max_mult={word})").lr_max_mult is None
    with pytest.raises(OptionError, match="must be a number"):
        methods.build(f"fedprox(mu={word})")


def test_case_hyphens_and_underscores_do_not_matter():
    assert methods.build("Fed-Prox") == FedProx()


@pytest.mark.parametrize("text", ["fedprox(mu=0.5)", "finetune(ditto(lam=2.0), epochs=3)", "fedavg"])
def test_describe_is_the_inverse_of_build(text):
    assert describe(methods.build(text)) == text


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("fedpox", UnknownNameError, "Did you mean fedprox"),
        ("fedprox(nu=1)", UnknownNameError, "Did you mean mu"),
        ("fedprox(mu=-1)", OptionError, r"must lie in \[0, inf\)"),
        ("fedprox(mu=high)", OptionError, "must be a number"),
        ("fedprox(mu=true)", OptionError, "must be a number"),
        ("fedprox(mu=.nan)", OptionError, "must lie in"),
        ("fedprox(mu=0.1", InputError, "left open"),
        ("fedprox(mu=0.1))", InputError, "closes nothing"),
        ("fedprox(mu=1, mu=2)", InputError, "given twice"),
        ("fedprox(,)", InputError, "empty place"),
        ("", InputError, "empty expression"),
        ("fedprox(1, 2)", InputError, "at most 1"),
        ("nowhere.py:Mine", UnknownNameError, "no file"),
    ],
)
def test_mistakes_are_explained(text, kind, message):
    with pytest.raises(kind, match=message):
        methods.build(text)


@pytest.mark.parametrize(
    ("text", "column", "problem"),
    [
        ("fedprox(mu=1, mu=1)", 14, "'mu' is given twice"),
        ("finetune(ditto(lam=1, epochs=3)", 8, "bracket is left open"),
        ("fedprox(mu=1))", 13, "closes nothing"),
        ("pfedgate(s=[1, 2)", 16, "does not close the '\\['"),
        ("fedprox(mu=1)x", 13, "nothing may follow"),
        ("fedprox(mu='1)", 11, "quote is left open"),
        ("finetune(ditto,, epochs=3)", 15, "an empty place before this comma"),
        ("finetune(ditto,)", 15, "a comma too many"),
        ("finetune(epochs=3, ditto)", 19, "without a name after one with a name"),
    ],
)
def test_errors_point_at_the_place(text, column, problem):
    with pytest.raises(InputError, match=problem) as caught:
        parse(text)
    assert str(caught.value).splitlines()[1:] == [f"    {text}", " " * (4 + column) + "^"]


def test_overrides_reach_into_what_is_wrapped():
    changed = override(methods.build("finetune(ditto)"), "inner.lam", "0.25")
    assert describe(changed) == "finetune(ditto(lam=0.25))"
    with pytest.raises(UnknownNameError, match="wraps nothing"):
        override(methods.build("fedavg"), "inner.lam", "1")


def test_lists_are_split_outside_brackets_only():
    assert split("a, b(c, d), e([1, 2])") == ["a", "b(c, d)", "e([1, 2])"]


@given(st.floats(0, 1e6, allow_nan=False))
def test_any_number_survives(mu):
    assert methods.build(describe(FedProx(mu=mu))).mu == mu


def test_an_own_method_comes_from_a_file(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from dataclasses import dataclass\n"
        "from idiolect import Method, option\n\n"
        "@dataclass(frozen=True)\n"
        "class Mine(Method):\n"
        "    '''Mine.'''\n"
        "    strength: float = option(1.0, min=0.0, help='how much')\n"
    )
    built = methods.build(f"{tmp_path}/mine.py:Mine(strength=3)")
    assert built.strength == 3.0
    assert describe(built) == f"{tmp_path}/mine.py:Mine(strength=3.0)"
    with pytest.raises(UnknownNameError, match="has no 'Other' that is a method"):
        methods.build(f"{tmp_path}/mine.py:Other")


def values_of(info: OptionInfo) -> st.SearchStrategy[Any]:
    """Values that an option allows, text that looks like a number among them."""
    limits = info.limits
    low = limits.min if limits.min is not None else limits.above
    high = limits.max if limits.max is not None else limits.below
    texts = st.sampled_from(["1e3", "true", "null", "", "it's", "a, b", "[1]", "2020-01-01", "007", " x "]) | st.text()
    by_type = {
        bool: st.booleans(),
        int: st.integers(int(max(low or 0, -99)), int(min(99 if high is None else high, 99))),
        float: st.floats(low, high, allow_nan=False),
        str: texts,
        type(None): st.none(),
        tuple: st.lists(st.floats(low, high, allow_nan=False) | texts).map(tuple),
    }
    return st.sampled_from(limits.choices) if limits.choices else st.one_of(by_type[kind] for kind in info.types)


@pytest.mark.parametrize("name", [*methods])
@given(data=st.data())
@settings(max_examples=25, deadline=None)
def test_every_method_with_any_options_is_written_and_read_again(name, data):
    cls = methods.get(name)
    values = {n: data.draw(values_of(info)) for n, info in options_of(cls).items() if data.draw(st.booleans())}
    if any(each.name == "inner" for each in dataclasses.fields(cls)):
        values["inner"] = data.draw(st.sampled_from([FedProx(mu=1e-7), Ditto(), FineTune(inner=Ditto(lam=2.0))]))
    try:
        method = cls(**values)
    except (InputError, TypeError, ValueError):
        return  # these options do not go together
    again = methods.build(describe(method))
    assert again == method
    assert describe(again) == describe(method)


@dataclass(frozen=True)
class Texts(Options):
    """Options that are text, perhaps, or lists of it."""

    word: str = option("", help="text")
    perhaps: str | float | None = option(None, min=-math.inf, max=math.inf, help="text, a number or nothing")
    words: tuple[str, ...] = option((), help="several")


texts: Registry[Texts] = Registry("text", Texts)
texts.register("texts")(Texts)


@given(st.text(), st.text() | st.floats(allow_nan=False) | st.none(), st.lists(st.text()))
@example("1e3", "true", ["null", "1e-3", "007"])
@example("", math.inf, [])
@example("", "", [""])
@example("'", '"', ["'\"", "''"])
@example("a: b", "#c", ["*d", "- e", "f\ng"])
def test_any_text_survives(word, perhaps, words):
    thing = Texts(word, perhaps, tuple(words))
    assert texts.build(describe(thing)) == thing


def test_small_numbers_in_lists_are_numbers():
    assert value("[1e-05, 2]") == [1e-05, 2]


OWN_FILE = """
from dataclasses import dataclass
from idiolect.contract import Method, option, register

{decorator}
@dataclass(frozen=True)
class Mine(Method):
    lam: float = option(0.0)
    identities = {{"mine(lam=1)": "fedavg"}}
"""


def test_a_name_that_is_taken_is_refused(tmp_path):
    path = tmp_path / "taken.py"
    path.write_text(OWN_FILE.format(decorator='@register("ditto")'))
    with pytest.raises(InputError, match=r"there is a method 'ditto' already, in idiolect\.methods\.ditto; register"):
        methods.get(f"{path}:Mine")
    assert methods.get("ditto") is Ditto


def test_what_a_file_lacks_is_said(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(OWN_FILE.format(decorator=""))
    with pytest.raises(UnknownNameError, match=r"which class of that file\? Write .*own.py:Class"):
        methods.get(str(path))
    with pytest.raises(UnknownNameError, match=r"has no 'mine' that is a method\. Did you mean Mine"):
        methods.get(f"{path}:mine")


def test_an_expression_may_be_built_of_another_class(tmp_path):
    path = tmp_path / "own.py"
    path.write_text(OWN_FILE.format(decorator=""))
    own = methods.get(f"{path}:Mine")
    assert methods.build("mine(lam=2)", own) == own(lam=2.0)
