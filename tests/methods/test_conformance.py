"""Every registered method, and what is worth checking beside its defaults, keeps the contract."""

import pytest

from idiolect.method import methods
from idiolect.testing import CHECKS, check_method

PRESETS = [f"{name}(preset={preset})" for name in methods for preset in methods.get(name).presets]
QUICK = {"fedrep": "fedrep(head_epochs=2)"}
EXTRA = ["finetune(ditto)", "finetune(fedper)", "ditto(epochs=1)", "fedper(layers=2)"]


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("method", [QUICK.get(name, name) for name in methods] + PRESETS + EXTRA)
def test_the_contract_holds(method, check):
    check_method(method, [check])


@pytest.mark.parametrize("name", methods)
def test_every_method_says_what_it_is(name):
    cls = methods.get(name)
    assert cls.title
    assert len((cls.__doc__ or "").strip().splitlines()) > 1
    assert name == "local" or name == "finetune" or cls.paper is not None
