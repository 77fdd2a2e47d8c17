"""A method of one's own in one file: a personal head that is held near the average one.

python examples/own_method.py
idiolect run --method 'examples/own_method.py:ProxHead(lam=0.5)'
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass

import idiolect
from idiolect.contract import (
    About,
    Batch,
    ClientContext,
    Method,
    RoundContext,
    Slot,
    Slots,
    Tree,
    option,
    private,
    register,
    tree,
)

OWN = "proxhead.own"


@register("proxhead")
@dataclass(frozen=True)
class ProxHead(Method):
    r"""FedPer with a tether: the body is shared, and each client's own head stays near the average head,

    .. math:: \min_{b, h_i} f_i(b, h_i) + \frac{\lambda}{2} \|h_i - \bar h\|^2.

    The server averages whole models, so the average head costs nothing extra. A client that has never trained uses
    it as its own.

    Hand-worked: own head 2, average head 1, gradient 3, lam = 0.5, learning rate 0.1: 2 - 0.1 (3 + 0.5) = 1.65.
    """

    about = About("A personal head, held near the average one", stays="the head that predicts")
    identities = {"proxhead(lam=0)": "fedper"}

    lam: float = option(0.1, min=0.0, help="pull of the own head towards the average one")

    @property
    def slots(self) -> Mapping[str, Slot]:
        """The shared model, and a head that stays on the client."""
        return {**super().slots, OWN: private(initial_head)}

    def prepare(self, ctx: ClientContext, work: Slots) -> Slots:
        """Start from the own head; the average one is the anchor."""
        anchor = tree.pick(work["params"], work[OWN])
        return {**work, **self.personal_model(ctx, work), "proxhead.anchor": anchor}

    def step(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """A step on the loss plus the tether, whose gradient is lam (h - anchor)."""
        pull = tree.sub(tree.pick(work["params"], work["proxhead.anchor"]), work["proxhead.anchor"])
        grad = ctx.grad(work, "params", batch).plus({**tree.zeros_like(work["params"]), **pull}, self.lam)
        return ctx.optimize(work, "params", grad, batch)

    def finish(self, ctx: ClientContext, work: Slots) -> Slots:
        """Keep the head; the whole model is sent, as usual."""
        return {**work, OWN: tree.pick(work["params"], work[OWN])}

    def personal_model(self, ctx: ClientContext, work: Slots) -> Slots:
        """The newest body under the own head, once there is one."""
        model = super().personal_model(ctx, work)
        return model if ctx.newcomer else {**model, "params": {**model["params"], **work[OWN]}}


def initial_head(ctx: RoundContext) -> Tree:
    """The own head: at first the common initial one."""
    return tree.pick(ctx.initial["params"], ctx.task.head())


def main() -> None:
    """From no tether at all, which is FedPer, to one head for all, which is FedAvg."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    print("20 clients with digits, Dirichlet 0.2; test accuracy at the round that validation selects")
    for method in ("fedper", ProxHead(lam=0.1), ProxHead(lam=1.0), "fedavg"):
        result = idiolect.run(
            method, "digits", partition="dirichlet:0.2", clients=20, rounds=rounds, lr=0.1, local_epochs=2
        )
        over_clients = result.summary["accuracy"]["selected"]
        shown = "   ".join(f"{name} {over_clients[name]:.3f}" for name in ("weighted", "bottom_decile", "worst"))
        print(f"{result.summary['method']:18} {shown}")


if __name__ == "__main__":
    main()
