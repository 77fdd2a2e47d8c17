"""One expression language for methods, data, partitions and networks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from idiolect.contract.method import methods
from idiolect.core.errors import InputError, OptionError, UnknownNameError
from idiolect.core.expressions import parse, split
from idiolect.core.registry import describe, override
from idiolect.methods.ditto import Ditto
from idiolect.methods.fedprox import FedProx
from idiolect.methods.finetune import FineTune


def test_names_options_and_what_is_wrapped():
    assert methods.build("fedprox(mu=0.5)") == FedProx(mu=0.5)
    assert methods.build("finetune(ditto(lam=2), epochs=3)") == FineTune(inner=Ditto(lam=2.0), epochs=3)
    assert methods.build("finetune") == FineTune()


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
        ("fedprox(mu=0.1", InputError, "left open|closing bracket"),
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


def test_errors_point_at_the_place():
    with pytest.raises(InputError) as caught:
        parse("fedprox(mu=1, mu=2)")
    assert str(caught.value).splitlines()[-1].index("^") - 4 == "fedprox(mu=1, mu=2)".index("mu=2")


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
    with pytest.raises(UnknownNameError, match="has no class"):
        methods.build(f"{tmp_path}/mine.py:Other")
