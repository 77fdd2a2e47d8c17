"""A method of one's own in one file: a personal head that is held near the average one.

python examples/own_method.py
idiolect run --method 'examples/own_method.py:ProxHead(lam=0.5)'
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import idiolect
from idiolect import Batch, Context, Method, Upload, option, register
from idiolect.core import tree
from idiolect.core.tree import Slots


@register("proxhead")
@dataclass(frozen=True)
class ProxHead(Method):
    r"""FedPer with a tether: the body is shared, and each client's own head stays near the average head,

    .. math:: \min_{b, h_i} f_i(b, h_i) + \frac{\lambda}{2} \|h_i - \bar h\|^2.

    The server averages whole models, so the average head costs nothing extra. A client that has never trained uses
    it as its own.

    Hand-worked: own head 2, average head 1, loss gradient 3, lam = 0.5 and rate 0.1 give 2 - 0.1 (3 + 0.5) = 1.65.
    """

    title: ClassVar[str] = "A personal head, held near the average one"
    identities: ClassVar[Mapping[str, str]] = {"proxhead(lam=0)": "fedper"}

    lam: float = option(0.1, min=0.0, help="pull of the own head towards the average one")

    def client_init(self, ctx: Context) -> Slots:
        """The own head: at first the common initial one."""
        return {**super().client_init(ctx), "proxhead.own": tree.pick(ctx.initial["params"], ctx.task.head())}

    def view(self, ctx: Context, client: Slots, download: Slots) -> Slots:
        """The newest body under the own head, once there is one."""
        model = super().view(ctx, client, download)
        return model if ctx.newcomer else {**model, "params": {**model["params"], **client["proxhead.own"]}}

    def begin(self, ctx: Context, client: Slots, download: Slots) -> Slots:
        """Train from the view, with the average head as the anchor."""
        anchor = tree.pick(download["params"], client["proxhead.own"])
        return {**self.view(ctx, client, download), "proxhead.anchor": anchor}

    def step(self, ctx: Context, work: Slots, batch: Batch) -> Slots:
        """A step on the loss plus the tether, whose gradient is lam (h - anchor)."""
        pull = tree.sub(tree.pick(work["params"], work["proxhead.anchor"]), work["proxhead.anchor"])
        grad = ctx.grad(work, "params", batch).plus({**tree.zeros_like(work["params"]), **pull}, self.lam)
        return ctx.descend(work, "params", grad, batch)

    def end(self, ctx: Context, client: Slots, work: Slots) -> tuple[Slots, Upload]:
        """Keep the head, and send the whole model."""
        client, upload = super().end(ctx, client, work)
        return {**client, "proxhead.own": tree.pick(work["params"], client["proxhead.own"])}, upload


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
