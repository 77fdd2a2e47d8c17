"""Every registered method, and what is worth checking beside its defaults, keeps the contract."""

import pytest

from idiolect.contract import methods
from idiolect.testing import check_method

PRESETS = [
    expression
    for name in methods
    for expression in (f"{name}(preset={preset})" for preset in methods.get(name).presets)
    if methods.build(expression) != methods.build(name)
]
QUICK = {"fedaf": "fedaf(per_class=2, steps=3)", "fedrep": "fedrep(head_epochs=2)"}
EXTRA = [
    "apfl(adaptive=false)",
    "apple(cap=2)",
    "apple(prior=own)",
    "ditto(epochs=1)",
    "apple(start=drawn, cap=2)",
    "fedaf(per_class=2, steps=3, mix=1)",
    "fedamp(start=mixture)",
    "fedas(align_epochs=2, fisher=false)",
    "fedala(layers=2, share=0.5)",
    "fedbabu(part=head, layers=2, epochs=1)",
    "lgfedavg(layers=2, pretrain=1)",
    "l2sgd(p=0.5, lam=1)",
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
    "fedlag(schedule=cumulative, warmup=0)",
    "fedmask(layers=3, sparsity=0)",
    "fedmd(samples=7, digest_epochs=2, digest_batch=3, loss=mse)",
    "fedpac(collaborate=false)",
    "fedpac(head_epochs=2, head_lr=0.2)",
    "fedpac(private_head=true)",
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
    "fedlag(server_models=true, warmup=0)",
    "fedlag(choose=middle, warmup=0)",
    "fedfac(at_start=true, server_lr=0.5)",
    "lgmix(newcomers=mean, include_newest=false)",
    "flayer(acc_source=holdout)",
    "flayer(acc_source=running, masks=kernel)",
    "flayer(ditto, head_epochs=1)",
    "flayer(ditto, mixed=own)",
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
    "lgmix(centered=true, pool=sum, feature_mode=eval)",
    "lgmix(missed=ignore, newcomers=mean)",
    "perfedavg(form=fo, uniform=false)",
    "pfedgate(gate=sample, shared_path=true, pre_norm=false)",
    "pfedgate(s=[0.5, 0.2], gate=client)",
    "pfedgate(solver=exact)",
    "pfedgate(gate=mean_input, sigmoid=false)",
    "pfedgate(preset=ref, evaluate=dense)",
    "pfedgate(split=structured, s=0.3)",
    "pfedhn(layers=1)",
    "scaffold(server_lr=0.5, uniform=false)",
]
OTHER_OPTIONS = ["stacking", "network", "pure", "unseen_clients", "round_trip"]
ONE_NETWORK = {
    *("apple", "fedaf", "fedamp", "fedcac", "fedcp", "feddbe", "fedem", "fedexp", "fedfac", "fedfomo", "fedhkd"),
    *("fedlag", "fedmask", "fedpac", "fedrod", "fedsplit", "gpfl", "heterofl", "heurfedamp", "pfedgate", "pfedhn"),
    "scaffold",
}


@pytest.mark.parametrize("method", [QUICK.get(name, name) for name in methods])
def test_the_contract_holds(method):
    check_method(method)


@pytest.mark.parametrize("method", PRESETS + EXTRA)
def test_the_contract_holds_with_other_options(method):
    check_method(method, OTHER_OPTIONS)


def test_other_options_are_those_of_another_method_each():
    built = [methods.build(each) for each in (*methods, *PRESETS, *EXTRA)]
    assert len(built) == len(set(built))


def test_which_methods_refuse_clients_with_different_networks():
    """That they do, with the reason, is checked with the rest of the contract; here, that no other does."""
    assert {name for name in methods if methods.build(name).refuses.other_networks} == ONE_NETWORK


@pytest.mark.parametrize("method", ["finetune(scaffold)", "flayer(fedrod)"])
def test_a_wrapper_refuses_them_where_its_inner_method_does(method):
    assert methods.build(method).refuses.other_networks
    check_method(method, ["networks"])


@pytest.mark.parametrize("name", list(methods))
def test_every_method_says_what_it_is(name):
    about = methods.get(name).about
    assert about.title
    assert len((methods.get(name).__doc__ or "").strip().splitlines()) > 1
    assert name in ("local", "finetune") or about.paper is not None
