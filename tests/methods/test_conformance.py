"""Every registered method, and what is worth checking beside its defaults, keeps the contract."""

import pytest

from idiolect.method import methods
from idiolect.testing import CHECKS, check_method

PRESETS = [f"{name}(preset={preset})" for name in methods for preset in methods.get(name).presets]
QUICK = {"fedrep": "fedrep(head_epochs=2)"}
EXTRA = [
    "finetune(ditto)",
    "ditto(epochs=1)",
    "fedper(layers=2)",
    "fedlag(flayer(ditto), warmup=0)",
    "flayer(fedper)",
    "flayer(fedlag)",
    "flayer(acc_source=holdout)",
    "lgmix(missed=ignore)",
    "lgmix(centered=true, pool=sum, ref_mode=train)",
    "finetune(lgmix)",
]


@pytest.mark.parametrize("check", list(CHECKS))
@pytest.mark.parametrize("method", [QUICK.get(name, name) for name in methods] + PRESETS + EXTRA)
def test_the_contract_holds(method, check):
    check_method(method, [check])


@pytest.mark.parametrize("name", list(methods))
def test_every_method_says_what_it_is(name):
    cls = methods.get(name)
    assert cls.title
    assert len((cls.__doc__ or "").strip().splitlines()) > 1
    assert name == "local" or name == "finetune" or cls.paper is not None
