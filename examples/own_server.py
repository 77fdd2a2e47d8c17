"""A method of one's own whose server does more than average: FedDyn (Acar et al., ICLR 2021).

python examples/own_server.py
idiolect run --method 'examples/own_server.py:FedDyn(alpha=0.1)' --data digits --rounds 20
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace

import idiolect
from idiolect.contract import (
    About,
    Batch,
    ClientContext,
    Method,
    Paper,
    Refuses,
    ServerContext,
    Slot,
    Slots,
    Sums,
    Uploads,
    option,
    private,
    register,
    tree,
    zeros_like_params,
)

GRADIENT, DRIFT, ANCHOR = "feddyn.gradient", "feddyn.drift", "feddyn.anchor"


@register("feddyn")
@dataclass(frozen=True)
class FedDyn(Method):
    r"""Each client minimises its loss with a linear and a proximal term, which make its optimum that of all clients,

    .. math:: f_i(w) - \langle g_i, w \rangle + \frac{\alpha}{2} \|w - w^t\|^2, \qquad
        g_i \leftarrow g_i - \alpha (w_i - w^t),

    and the server goes beyond the mean of the participants P of N clients (Algorithm 1),

    .. math:: h \leftarrow h - \frac{\alpha}{N} \sum_{i \in P} (w_i - w^t), \qquad
        w \leftarrow \frac{1}{|P|} \sum_{i \in P} w_i - \frac{h}{\alpha}.

    Hand-worked: alpha = 0.5, w^t = 1, h = 0, N = 4; two participants end at 2 and 4. Then h = -0.5 / 4 (1 + 3) = -0.5
    and w = 3 + 0.5 / 0.5 = 4; the first one's g goes from 0.2 to 0.2 - 0.5 (2 - 1) = -0.3. One step from w = 2 with
    gradient 3, g = 0.2 and learning rate 0.1 leads to 2 - 0.1 (3 - 0.2 + 0.5 (2 - 1)) = 1.67.
    """

    about = About(
        "Linear and proximal terms that align the clients' optima",
        paper=Paper("Acar et al.", "Federated Learning Based on Dynamic Regularization", "ICLR", 2021),
        kind="global",
        stays="the linear term",
    )
    refuses = Refuses(other_networks="it compares the updates of one network")

    alpha: float = option(0.1, above=0.0, help="weight of the proximal term")

    @property
    def slots(self) -> Mapping[str, Slot]:
        """The model, in whose mean all clients count alike; g stays on the client, h on the server."""
        return {
            "params": replace(super().slots["params"], weigh="uniform"),
            GRADIENT: private(zeros_like_params),
            DRIFT: Slot("server", zeros_like_params),
        }

    def prepare(self, ctx: ClientContext, work: Slots) -> Slots:
        """Remember the received model."""
        return {**work, ANCHOR: work["params"]}

    def step(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """A step along the gradient of f_i, minus g_i, plus alpha (w - w^t)."""
        distance = tree.sub(work["params"], work[ANCHOR])
        grad = ctx.grad(work, "params", batch).plus(work[GRADIENT], -1.0).plus(distance, self.alpha)
        return ctx.optimize(work, "params", grad, batch)

    def finish(self, ctx: ClientContext, work: Slots) -> Slots:
        """The client's new g."""
        update = tree.sub(work["params"], work[ANCHOR])
        return {**work, GRADIENT: tree.add(work[GRADIENT], update, -self.alpha)}

    def aggregate(self, ctx: ServerContext, server: Slots, sums: Mapping[str, Sums], each: Uploads) -> Slots:
        """The new h, and the mean of the models moved by it."""
        after = super().aggregate(ctx, server, sums, each)
        update, share = tree.sub(after["params"], server["params"]), sums["params"].count / len(ctx.clients)
        drift = tree.add(server[DRIFT], update, -self.alpha * share)
        return {**after, "params": tree.add(after["params"], drift, -1 / self.alpha), DRIFT: drift}


def main() -> None:
    """One global model by FedAvg and by FedDyn, with fine-tuning and without."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    print("20 clients with digits, Dirichlet 0.2; test accuracy at the round that validation selects")
    for method in ("fedavg", FedDyn(), "finetune(fedavg)", "finetune(feddyn)"):
        result = idiolect.run(method, "digits", partition="dirichlet:0.2", clients=20, rounds=rounds, lr=0.1)
        print(f"{result.summary['method']:18} {result.summary['accuracy']['selected']['weighted']:.3f}")


if __name__ == "__main__":
    main()
