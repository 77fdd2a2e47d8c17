"""Every registered method, and what is worth checking beside its defaults, keeps the contract."""

import re
from dataclasses import replace

import pytest

from idiolect import Task
from idiolect.contract.method import methods
from idiolect.core.errors import ModelError
from idiolect.testing import CHECKS, check_method, tiny_model, tiny_plan

PRESETS = [f"{name}(preset={preset})" for name in methods for preset in methods.get(name).presets]
QUICK = {"fedaf": "fedaf(per_class=2, steps=3)", "fedrep": "fedrep(head_epochs=2)"}
EXTRA = [
    "apfl(adaptive=false)",
    "apple(cap=2)",
    "apple(prior=own)",
    "ditto(epochs=1)",
    "fedaf(per_class=2, steps=3, mix=1)",
    "fedala(layers=2, share=0.5)",
    "fedalt(personal=input, layers=2)",
    "fedamp(start=mixture)",
    "fedas(align_epochs=2, fisher=false)",
    "fedbabu(part=head, layers=2, epochs=1)",
    "fedcac(tau=0.3, beta=2)",
    "feddbe(mu=0.3)",
    "fedexp(eps=inf, average_last=false)",
    "fedfomo(models=1)",
    "fedhkd(sigma=0, min_share=0.3)",
    "fedlag(fedamp, warmup=0)",
    "fedlag(fedcac, warmup=0)",
    "fedlag(fedhkd, warmup=0)",
    "fedlag(fedrod(hyper=true), warmup=0)",
    "fedlag(flayer(ditto), warmup=0)",
    "fedlag(flayer(fedala), warmup=0)",
    "fedlag(flayer(feddbe), warmup=0)",
    "fedlag(lgfedavg(layers=2, pretrain=1), warmup=0, k=1)",
    "fedlag(pfedgate, warmup=0)",
    "fedlag(preset=ref, warmup=0)",
    "fedlag(scaffold, warmup=0)",
    "fedlag(sketch=16, warmup=0)",
    "fedlag(warmup=0)",
    "fedmask(layers=3, sparsity=0)",
    "fedmd(samples=7, digest_epochs=2, digest_batch=3, loss=mse)",
    "fedpac(collaborate=false)",
    "fedpac(head_epochs=2, head_lr=0.2)",
    "fedper(layers=2)",
    "fedrod(hyper=true)",
    "fedsim(units=[0])",
    "finetune(apple)",
    "finetune(ditto)",
    "finetune(fedcp)",
    "finetune(fedem)",
    "finetune(fedrod)",
    "finetune(gpfl)",
    "finetune(heterofl)",
    "finetune(lgmix)",
    "finetune(scaffold)",
    "flayer(acc_source=holdout)",
    "flayer(fedala)",
    "flayer(fedamp)",
    "flayer(fedcp)",
    "flayer(fedlag)",
    "flayer(fedpac)",
    "flayer(fedper)",
    "flayer(l2sgd)",
    "flayer(pfedgate(split=structured))",
    "heterofl(evaluate=global)",
    "heterofl(rates=[1, 0.5, 0.25], scaler=false, mask=false, weighted=true)",
    "l2sgd(p=0.5, lam=1)",
    "lgfedavg(layers=2, pretrain=1)",
    "lgmix(centered=true, pool=sum, ref_mode=train)",
    "lgmix(missed=ignore)",
    "perfedavg(form=fo, uniform=false)",
    "pfedgate(gate=sample, shared_path=true, pre_norm=false)",
    "pfedgate(s=[0.5, 0.2], gate=client)",
    "pfedgate(solver=exact)",
    "pfedgate(split=structured, s=0.3)",
    "pfedhn(layers=1)",
    "scaffold(server_lr=0.5, uniform=false)",
]
ONE_NETWORK = [
    *("apple", "fedaf", "fedamp", "fedcac", "fedcp", "feddbe", "fedem", "fedexp", "fedfac", "fedfomo", "fedhkd"),
    *("fedlag", "fedmask", "fedpac", "fedrod", "fedsplit", "finetune(scaffold)", "flayer(fedrod)", "gpfl", "heterofl"),
    *("heurfedamp", "pfedgate", "pfedhn", "scaffold"),
]


@pytest.mark.parametrize("check", list(CHECKS))
@pytest.mark.parametrize("method", [QUICK.get(name, name) for name in methods])
def test_the_contract_holds(method, check):
    check_method(method, [check])


@pytest.mark.parametrize(
    "check", ["round_trip", "through_bytes", "engines", "network", "pure", "absent_clients", "unseen_clients"]
)
@pytest.mark.parametrize("method", PRESETS + EXTRA)
def test_the_contract_holds_with_other_options(method, check):
    check_method(method, [check])


@pytest.mark.parametrize("method", ONE_NETWORK)
def test_clients_with_different_networks_are_refused_with_the_reason(method):
    plan = tiny_plan(method)
    other = Task(tiny_model(width=3), plan.tasks[0].example, classes=3)
    reason = re.escape(plan.method.one_network)
    with pytest.raises(ModelError, match=f"{reason}, so all clients need the same network, but they have 2"):
        replace(plan, tasks=(plan.tasks[0], other), models=(0, 1, 0, 1, 0))


@pytest.mark.parametrize("name", list(methods))
def test_every_method_says_what_it_is(name):
    cls = methods.get(name)
    assert cls.title
    assert len((cls.__doc__ or "").strip().splitlines()) > 1
    assert name == "local" or name == "finetune" or cls.paper is not None
