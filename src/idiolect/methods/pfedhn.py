"""pFedHN: a hyper-network on the server generates every client's model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ..contract import (
    About,
    Batch,
    ClientContext,
    Download,
    Grad,
    Phase,
    Refuses,
    Scored,
    ServerContext,
    Slots,
    Tree,
    Upload,
    option,
    register,
    tree,
)
from ..core.randomness import torch_seed
from ..task.optimizers import SGD
from .fedper import PrivateHead

NET = "pfedhn.net"
EMBEDDING = "pfedhn.embedding"
MOMENTUM = "pfedhn.momentum"


@register("pfedhn")
@dataclass(frozen=True)
class PFedHN(PrivateHead):
    r"""pFedHN (Shamsian et al., ICML 2021): the server learns a hyper-network :math:`\varphi` and an embedding
    :math:`v_i` per client, and sends client i the model :math:`\theta_i = h(v_i; \varphi)`. The client trains it to
    :math:`\tilde\theta_i`; the change :math:`\Delta\theta_i = \tilde\theta_i - \theta_i` stands for a gradient, which
    the server takes back through the hyper-network (Algorithm 1):

    .. math:: \varphi \leftarrow \varphi + \alpha (\nabla_\varphi \theta_i)^T \Delta\theta_i, \quad
              v_i \leftarrow v_i + \alpha (\nabla_{v_i} \theta_i)^T \Delta\theta_i.

    The hyper-network is an MLP from the embedding and, for each tensor, a linear map to its values. With several
    participants the server takes a step for each in turn, with :math:`\theta_i` as the hyper-network gives it by then.
    `layers` keeps the last layers on the clients (pFedHN-PC).

    Hand-worked: :math:`\theta = W v` with W = 2, v = 3 gives 6; the client trains it to 7, so the change is 1. At rate
    0.1, W moves by 0.1 x 1 x v to 2.3 and v by 0.1 x 1 x W to 3.2: the client's next model is 7.36.

    A client predicts with what the newest hyper-network generates for it, whether it took part or not. An unseen one
    gets the hyper-network and trains its embedding only, from the mean of all. The hyper-network has about `hidden`
    numbers per number of the model; only the model travels. The server sees every client's model.
    """

    about = About(
        "A hyper-network on the server generates each client's model",
        paper="shamsian2021pfedhn",
        reveals="the trained model that the server generated for it",
        stays="the head, with layers=1",
        caution="the server holds a generator of every client's model",
    )
    refuses = Refuses(
        wrapping="the server generates each client's model, so there is no one model to act on",
        other_networks="it generates models of one shape",
    )
    identities: ClassVar[dict[str, str]] = {"pfedhn(layers=3)": "local"}

    layers: int = option(0, min=0, help="how many of the last layers are private (pFedHN-PC)")
    embedding: int | None = option(None, min=1, help="size of the embeddings; none is 1 + clients / 4")
    hidden: int = option(100, min=1, help="width of the hyper-network")
    depth: int = option(3, min=0, help="hidden layers of the hyper-network after the first")
    lr: float = option(0.01, above=0.0, help="the server's rate")
    momentum: float = option(0.9, min=0.0, below=1.0, help="the server's momentum")
    weight_decay: float = option(1e-3, min=0.0, help="the server's weight decay")
    clip: float | None = option(50.0, above=0.0, help="largest norm of the server's gradient; none is any")
    onboard_epochs: int = option(10, min=0, help="passes in which an unseen client trains its embedding")

    # -- the hyper-network ---------------------------------------------------------------------------

    def generated(self, ctx: ClientContext | ServerContext) -> Tree:
        """The initial values of the tensors that the hyper-network generates: all that is not private."""
        return tree.drop(ctx.initial["params"], self.kept(ctx))

    def generate(self, ctx: ClientContext | ServerContext, net: Mapping[str, Tensor], v: Tensor) -> Tree:
        """The model of an embedding."""
        hidden = v
        for layer in range(self.depth + 1):
            hidden = F.linear(hidden.relu() if layer else hidden, net[f"mlp{layer}.weight"], net[f"mlp{layer}.bias"])
        return {
            name: F.linear(hidden, net[f"{name} weight"], net[f"{name} bias"]).reshape(leaf.shape)
            for name, leaf in self.generated(ctx).items()
        }

    @property
    def optimizer(self) -> SGD:
        """The server's."""
        return SGD(momentum=self.momentum, weight_decay=self.weight_decay, clip=self.clip)

    # -- server --------------------------------------------------------------------------------------

    def server_init(self, ctx: ServerContext) -> Slots:
        """A hyper-network and embeddings as PyTorch initialises linear layers and embeddings."""
        draw = torch.Generator().manual_seed(torch_seed(ctx.seed, "pfedhn"))
        size = self.embedding or 1 + len(ctx.clients) // 4
        sizes = {f"mlp{layer}.": (size if layer == 0 else self.hidden, self.hidden) for layer in range(self.depth + 1)}
        sizes |= {f"{name} ": (self.hidden, leaf.numel()) for name, leaf in self.generated(ctx).items()}
        net: Tree = {}
        for name, (inputs, outputs) in sizes.items():
            for part, shape in (("weight", (outputs, inputs)), ("bias", (outputs,))):
                net[name + part] = (2 * torch.rand(shape, generator=draw) - 1) / math.sqrt(inputs)
        embeddings = torch.randn(len(ctx.clients), size, generator=draw)
        device = next(iter(ctx.initial["params"].values())).device
        slots = {NET: net, EMBEDDING: {"v": embeddings}}
        slots = {slot: tree.map(lambda leaf: leaf.to(device), leaves) for slot, leaves in slots.items()}
        state = self.optimizer.init({**slots[NET], **slots[EMBEDDING]})
        return {**slots, **({MOMENTUM: state["momentum"]} if state else {}), "buffers": ctx.initial["buffers"]}

    def download(self, ctx: ServerContext, server: Slots, ids: Sequence[int]) -> Download:
        """To each client its model, and the common buffers."""
        rows = {i: server[EMBEDDING]["v"][ctx.clients.index(i)] for i in ids if i in ctx.clients}
        models: dict[int, Slots] = {i: {"params": self.generate(ctx, server[NET], v)} for i, v in rows.items()}
        return Download({"buffers": tree.drop(server["buffers"], self.kept(ctx))}, models)

    def welcome(self, ctx: ServerContext, server: Slots, index: int) -> Slots:
        """The hyper-network, and the mean embedding to start from."""
        shared = self.download(ctx, server, ()).shared
        return {**shared, NET: server[NET], EMBEDDING: {"v": server[EMBEDDING]["v"].mean(0)}}

    def aggregate(self, ctx: ServerContext, server: Slots, uploads: Mapping[int, Upload]) -> Slots:
        """For each participant in turn, in a random order: its change, taken back through the hyper-network."""
        held = {**server[NET], **server[EMBEDDING]}
        state = {"momentum": server[MOMENTUM]} if MOMENTUM in server else {}
        for at in ctx.rng("pfedhn").permutation(len(uploads)).tolist():
            index = sorted(uploads)[at]
            grads = self.pull(ctx, held, index, uploads[index].slots["params"])
            held, state = self.optimizer.step(held, grads, state, self.lr)
        after = {NET: tree.pick(held, server[NET]), EMBEDDING: tree.pick(held, server[EMBEDDING])}
        momentum = {MOMENTUM: state["momentum"]} if state else {}
        return {**after, **momentum, "buffers": self.average(ctx, server["buffers"], uploads, "buffers")}

    def pull(self, ctx: ServerContext, held: Tree, index: int, trained: Tree) -> Tree:
        """The gradient of hyper-network and embeddings: theirs of the model, times how far it is from the trained one.

        The model is the one of now: what the participants before have already moved is not moved again.
        """
        row = ctx.clients.index(index)
        leaves = tree.map(lambda leaf: leaf.detach().requires_grad_(), held)
        with torch.enable_grad():
            model = self.generate(ctx, leaves, leaves["v"][row])
        back = [leaf.detach() - trained[name] for name, leaf in model.items()]
        grads = torch.autograd.grad(list(model.values()), list(leaves.values()), back)
        return dict(zip(leaves, grads, strict=True))

    # -- client --------------------------------------------------------------------------------------

    def view(self, ctx: ClientContext, client: Slots, download: Slots) -> Slots:
        """The client's model; an unseen client's, with what generates it."""
        if NET not in download:
            return super().view(ctx, client, download)
        model = {"params": self.generate(ctx, download[NET], download[EMBEDDING]["v"])}
        own = {slot: download[slot] for slot in (NET, EMBEDDING)}
        return {**super().view(ctx, client, {**download, **model}), **own}

    def onboard(self, ctx: ClientContext) -> Sequence[Phase]:
        """An unseen client trains its embedding, and with it the head that it keeps private."""
        head = self.kept(ctx) & frozenset(ctx.initial["params"])
        slots = (EMBEDDING, "params") if head else (EMBEDDING,)
        return (Phase("onboard", slots=slots, part=head or None, epochs=self.onboard_epochs),)

    def tune(self, ctx: ClientContext, view: Slots, batch: Batch) -> Slots:
        """A step of the embedding and the private head, the hyper-network frozen; or of the model, to fine-tune it."""
        if ctx.phase.name != "onboard":
            return super().tune(ctx, view, batch)

        def model(slots: Slots) -> Tree:
            return {**slots.get("params", view["params"]), **self.generate(ctx, view[NET], slots[EMBEDDING]["v"])}

        def loss(trees: Slots) -> Scored:
            return ctx.task.loss(model(trees), view["buffers"], batch)

        grad = ctx.grad(view, ctx.phase.slots, batch, loss)
        for slot in ctx.phase.slots:
            view = ctx.move(view, slot, Grad({slot: grad.slots[slot]}, grad.scored), ctx.rate)
        return {**view, "params": model(view), "buffers": grad.scored.buffers}
