"""pFedHN: a hyper-network on the server generates every client's model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from ..contract import About, Grad, Phase, Refuses, Slots, Sums, Tree, option, register, tree
from ..contract.context import ClientContext, RoundContext, ServerContext
from ..contract.messages import Download, Uploads
from ..contract.parts.private_layers import PrivateLayers
from ..contract.slots import Slot
from ..core.randomness import torch_seed
from ..task.optimizers import SGD
from ..task.task import Batch, Scored

NET, EMBEDDING, MOMENTUM = "pfedhn.net", "pfedhn.embedding", "pfedhn.momentum"


@register("pfedhn")
@dataclass(frozen=True)
class PFedHN(PrivateLayers):
    r"""pFedHN (Shamsian et al., ICML 2021): the server learns a hyper-network :math:`\varphi` and an embedding
    :math:`v_i` per client, and sends client i the model :math:`\theta_i = h(v_i; \varphi)`. The client trains it to
    :math:`\tilde\theta_i`; the change :math:`\Delta\theta_i = \tilde\theta_i - \theta_i` stands for a gradient, which
    the server takes back through the hyper-network (Algorithm 1):

    .. math:: \varphi \leftarrow \varphi + \alpha (\nabla_\varphi \theta_i)^T \Delta\theta_i, \quad
              v_i \leftarrow v_i + \alpha (\nabla_{v_i} \theta_i)^T \Delta\theta_i.

    The hyper-network is an MLP from the embedding and, for each tensor, a linear map to its values. With several
    participants the server takes one step, along the sum of their terms at the hyper-network that was sent. `layers`
    keeps the last layers on the clients (pFedHN-PC).

    A client predicts with what the newest hyper-network generates for it, whether it took part or not. An unseen one
    gets the hyper-network and trains its embedding only, from the mean of all. The hyper-network has about `hidden`
    numbers per number of the model; only the model travels. The server sees every client's model.
    Run it: ``idiolect run pfedhn``.
    """

    about = About(
        "A hyper-network on the server generates each client's model",
        family="a start that adapts",
        paper="shamsian2021pfedhn",
        reveals="the trained model that the server generated for it",
        stays="the head, with layers=1",
        caution="the server holds a generator of every client's model",
    )
    refuses = Refuses(
        wrapping="the server generates each client's model, so there is no one model to act on",
        other_networks="it generates models of one shape",
        own_labels="",
        summing="the server takes each client's model back through the hyper-network",
    )
    identities = {"pfedhn(layers=3)": "local"}

    layers: int = option(0, min=0, help="how many of the last layers are private (pFedHN-PC)")
    embedding: int | None = option(None, min=1, help="size of the embeddings; none is 1 + clients / 4")
    hidden: int = option(100, min=1, help="width of the hyper-network")
    depth: int = option(3, min=0, help="hidden layers of the hyper-network after the first")
    lr: float = option(0.01, above=0.0, help="the server's learning rate")
    momentum: float = option(0.9, min=0.0, below=1.0, help="the server's momentum")
    weight_decay: float = option(1e-3, min=0.0, help="the server's weight decay")
    clip: float | None = option(50.0, above=0.0, help="largest norm of the server's gradient; none is any")
    onboard_epochs: int = option(10, min=0, tuned="never", help="passes in which an unseen client trains its embedding")

    @property
    def slots(self) -> Mapping[str, Slot]:
        """The model, which the server generates and does not keep; the hyper-network and all embeddings stay there."""
        model = replace(super().slots["params"], up="each")
        generator_slots = {NET: Slot("server", self.first_net), EMBEDDING: Slot("server", self.first_embeddings)}
        momentum = {MOMENTUM: Slot("server", self.first_momentum)} if self.momentum else {}
        return {"params": model, **generator_slots, **momentum}

    # -- the hyper-network ---------------------------------------------------------------------------

    def pick_generated(self, ctx: RoundContext) -> Tree:
        """The initial values of the tensors that the hyper-network generates: all that is not private."""
        return tree.drop(ctx.initial["params"], ctx.private_names)

    def generate(self, ctx: RoundContext, net: Mapping[str, Tensor], v: Tensor) -> Tree:
        """The model of an embedding; of several, by row, all their models at once."""
        hidden = v
        for layer in range(self.depth + 1):
            hidden = F.linear(hidden.relu() if layer else hidden, net[f"mlp{layer}.weight"], net[f"mlp{layer}.bias"])
        return {
            name: F.linear(hidden, net[f"{name} weight"], net[f"{name} bias"]).reshape((*v.shape[:-1], *leaf.shape))
            for name, leaf in self.pick_generated(ctx).items()
        }

    def first_values(self, ctx: ServerContext) -> tuple[Tree, Tree]:
        """A hyper-network and embeddings as PyTorch initialises linear layers and embeddings."""
        draw = torch.Generator().manual_seed(torch_seed(ctx.training.seed, "pfedhn"))
        size = self.embedding or 1 + len(ctx.clients) // 4
        sizes = {f"mlp{layer}.": (size if layer == 0 else self.hidden, self.hidden) for layer in range(self.depth + 1)}
        sizes |= {f"{name} ": (self.hidden, leaf.numel()) for name, leaf in self.pick_generated(ctx).items()}
        net: Tree = {}
        for name, (inputs, outputs) in sizes.items():
            for part, shape in (("weight", (outputs, inputs)), ("bias", (outputs,))):
                net[name + part] = (2 * torch.rand(shape, generator=draw) - 1) / math.sqrt(inputs)
        embeddings = torch.randn(len(ctx.clients), size, generator=draw)
        device = ctx.training.device
        return tree.map(lambda leaf: leaf.to(device), net), {"v": embeddings.to(device)}

    def first_net(self, ctx: ServerContext) -> Tree:
        """The initial hyper-network."""
        return self.first_values(ctx)[0]

    def first_embeddings(self, ctx: ServerContext) -> Tree:
        """The initial embeddings."""
        return self.first_values(ctx)[1]

    def first_momentum(self, ctx: ServerContext) -> Tree:
        """The server's optimiser before its first step."""
        net, embeddings = self.first_values(ctx)
        return self.optimizer.init({**net, **embeddings})["momentum"]

    @property
    def optimizer(self) -> SGD:
        """The server's."""
        return SGD(momentum=self.momentum, weight_decay=self.weight_decay, clip=self.clip)

    def download(self, ctx: ServerContext, server: Slots, ids: Sequence[int]) -> Download:
        """To each client its model; to an unseen one the hyper-network, and the mean embedding to start from."""
        guest = {NET: server[NET], EMBEDDING: {"v": server[EMBEDDING]["v"].mean(0)}}
        rows = {i: server[EMBEDDING]["v"][ctx.clients.index(i)] for i in ids if i in ctx.clients}
        models = {i: {"params": self.generate(ctx, server[NET], v)} for i, v in rows.items()}
        buffers = tree.drop(server["buffers"], ctx.private_names)
        return Download({"buffers": buffers}, {i: models.get(i, guest) for i in ids})

    def aggregate(self, ctx: ServerContext, server: Slots, sums: Mapping[str, Sums], each: Uploads) -> Slots:
        """One step: the participants' changes, taken back through the hyper-network that was sent, and added up."""
        values = {**server[NET], **server[EMBEDDING]}
        state = {"momentum": server[MOMENTUM]} if MOMENTUM in server else {}
        trained = {index: each[index].slots["params"] for index in sorted(each)}
        values, state = self.optimizer.step(values, self.gradient(ctx, values, trained), state, self.lr)
        after = {NET: tree.pick(values, server[NET]), EMBEDDING: tree.pick(values, server[EMBEDDING])}
        momentum = {MOMENTUM: state["momentum"]} if state else {}
        return {**after, **momentum, "buffers": sums["buffers"].mean(server["buffers"])}

    def gradient(self, ctx: ServerContext, values: Tree, trained: Mapping[int, Tree]) -> Tree:
        """The gradient of hyper-network and embeddings: theirs of each client's model, times how far that is from the
        trained one, summed over clients."""
        rows = [ctx.clients.index(client) for client in trained]
        leaves = tree.map(lambda leaf: leaf.detach().requires_grad_(), values)
        with torch.enable_grad():
            models = self.generate(ctx, leaves, leaves["v"][rows])
        goals = tree.stack(list(trained.values()))
        back = [leaf.detach() - goals[name] for name, leaf in models.items()]
        grads = torch.autograd.grad(list(models.values()), list(leaves.values()), back)
        return dict(zip(leaves, grads, strict=True))

    def personal_model(self, ctx: ClientContext, work: Slots) -> Slots:
        """The client's model; an unseen client's, with what generates it."""
        if NET not in work:
            return super().personal_model(ctx, work)
        model = {**work["params"], **self.generate(ctx, work[NET], work[EMBEDDING]["v"])}
        extra = {slot: work[slot] for slot in ("buffers", NET, EMBEDDING)}
        return {"params": {name: model[name] for name in ctx.initial["params"]}, **extra}

    def onboard(self, ctx: ClientContext) -> Sequence[Phase]:
        """An unseen client trains its embedding, and with it the head that it keeps private."""
        head = ctx.private_names & frozenset(ctx.initial["params"])
        slots = (EMBEDDING, "params") if head else (EMBEDDING,)
        return (Phase(self.embed, "onboard", slots=slots, part=head or None, epochs=self.onboard_epochs),)

    def embed(self, ctx: ClientContext, model: Slots, batch: Batch) -> Slots:
        """A step of the embedding and the private head, the hyper-network frozen."""

        def params(slots: Slots) -> Tree:
            return {**slots.get("params", model["params"]), **self.generate(ctx, model[NET], slots[EMBEDDING]["v"])}

        def loss(trees: Slots) -> Scored:
            return ctx.task.loss(params(trees), model["buffers"], batch)

        grad, after = ctx.grad(model, ctx.phase.slots, batch, loss), model
        for slot in ctx.phase.slots:
            after = ctx.apply(after, slot, Grad({slot: grad.slots[slot]}, grad.scored))
        return {**after, "params": params(after), "buffers": grad.scored.buffers}
