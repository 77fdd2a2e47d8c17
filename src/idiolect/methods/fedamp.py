"""FedAMP and HeurFedAMP: each client is pulled towards its own mixture of all clients' models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..contract import About, Batch, Download, OptionError, Slots, Sums, Uploads, option, register, tree
from ..contract.context import ClientContext, ServerContext
from ..contract.parts.collection import Collection, gram, known_clients, latest, split_model


@dataclass(frozen=True)
class MessagePassing(Collection):
    """The server mixes the clients' latest models anew for each client; subclasses say by which weights."""

    lam: float = option(1.0, min=0.0, tuned="0.1:10:log", help="weight lambda of the pull towards the mixture")
    start: str = option("own", choices=("own", "mixture"), help="where local training starts from")

    @property
    def pull(self) -> float:
        """The factor of the proximal gradient."""
        return self.lam

    def prepare(self, ctx: ClientContext, work: Slots) -> Slots:
        """The own model, or the mixture u_i; u_i as anchor, so that what is not shared is not pulled anywhere."""
        start = super().prepare(ctx, work) if self.start == "own" else work
        return {**start, "fedamp.anchor": work["params"]}

    def step(self, ctx: ClientContext, work: Slots, batch: Batch) -> Slots:
        """A step on the loss plus the proximal term."""
        away = tree.sub(work["params"], work["fedamp.anchor"])
        return ctx.optimize(work, "params", ctx.grad(work, "params", batch).plus(away, self.pull), batch)

    def attention(self, products: Tensor) -> Tensor:
        """The weights xi, a row for each client, from the models' inner products."""
        raise NotImplementedError

    def download(self, ctx: ServerContext, server: Slots, ids: Sequence[int]) -> Download:
        """The mixture u_i; a client without a model gets the mean of the newest ones."""
        everyone, mean = known_clients(ctx, server), super().download(ctx, server, ids).shared
        there, messages = [i for i in ids if i in everyone], dict.fromkeys(ids, mean)
        if there:
            xi = server["fedamp.attention"]["xi"][[everyone.index(i) for i in there]]
            mixtures = tree.means([server[latest(j)] for j in everyone], xi)
            messages |= {i: split_model(ctx, mixture) for i, mixture in zip(there, mixtures, strict=True)}
        return Download({}, messages)

    def aggregate(self, ctx: ServerContext, server: Slots, sums: Mapping[str, Sums], each: Uploads) -> Slots:
        """The new models, and by which weights they go into each client's mixture."""
        after = super().aggregate(ctx, server, sums, each)
        models = [after[latest(i)] for i in known_clients(ctx, after)]
        shared = [name for name in ctx.initial["params"] if name in models[0]]
        return {**after, "fedamp.attention": {"xi": self.attention(gram(models, shared))}}

    def server_records(self, ctx: ServerContext, server: Slots) -> dict[str, float]:
        """The mean weight that a client's own model has in its mixture."""
        attention = server.get("fedamp.attention")
        return {"self_weight": float(attention["xi"].diag().mean())} if attention else {}


@register("fedamp")
@dataclass(frozen=True)
class FedAMP(MessagePassing):
    r"""FedAMP (Huang et al., AAAI 2021): clients with similar models attract each other (Algorithm 1).
    Run it: ``idiolect run fedamp``.

    From the latest models the server makes for each client

    .. math:: u_i = \sum_j \xi_{ij} w_j, \quad \xi_{ij} = \alpha_k A'(\|w_i - w_j\|^2), \quad
        A'(x) = \frac{1}{\sigma} e^{-x / \sigma}, \quad \xi_{ii} = 1 - \sum_{j \ne i} \xi_{ij},

    and the client, which starts from and predicts with its own :math:`w_i`, minimises

    .. math:: F_i(w) + \frac{\lambda}{2 \alpha_k} \|w - u_i\|^2, \quad
        \text{whose term adds } \frac{\lambda}{\alpha_k} (w - u_i) \text{ to the gradient.}

    Squared distances grow with the number of parameters and through training, so no fixed :math:`\sigma` suits all
    models. Here :math:`\sigma` is `sigma` times the mean squared distance between two of the N models, and
    :math:`\alpha_k` and :math:`\lambda` count in units of :math:`\sigma / (N - 1)`. Then
    :math:`\xi_{ij} = \frac{\alpha}{N - 1} e^{-\|w_i - w_j\|^2 / \sigma}`, the others' weights sum to at most
    :math:`\alpha \le 1`, and the pull is `lam / alpha`. `relative=false` takes the numbers as they are in the formulas.
    """

    about = About(
        "Similar clients attract each other",
        family="mixtures of models",
        paper="huang2021fedamp",
        reveals="the client's own trained model",
        caution="the server keeps every client's latest model; clients get mixtures of them",
    )
    identities = {"fedamp(lam=0)": "local"}

    alpha: float = option(
        1.0, above=0.0, tuned="0.1:1", help="weight of others' models in the mixture, and inverse pull; at most 1"
    )
    sigma: float = option(1.0, above=0.0, tuned="0.1:10:log", help="squared distance over which attraction fades")
    relative: bool = option(True, help="sigma is a multiple of the mean squared distance, alpha and lam scale with it")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.relative and self.alpha > 1:
            raise OptionError(
                f"fedamp: alpha={self.alpha} is not allowed; others may not have more than the whole weight, so alpha "
                "must lie in (0, 1] (with relative=false it may be larger, as long as the weights allow it)"
            )

    @property
    def pull(self) -> float:
        """lambda / alpha_k."""
        return self.lam / self.alpha

    def attention(self, products: Tensor) -> Tensor:
        """xi by the models' squared distances: alpha_k A'."""
        count, lengths = len(products), products.diag()
        apart = (lengths[:, None] + lengths[None, :] - 2 * products).clamp_min(0.0)
        apart.fill_diagonal_(0.0)
        pairs = max(1, count * (count - 1))
        sigma = self.sigma * (float(apart.sum()) / pairs if self.relative else 1.0)
        share = self.alpha / (max(1, count - 1) if self.relative else sigma)
        xi = share * torch.exp(-apart / max(sigma, torch.finfo(apart.dtype).tiny))
        xi.fill_diagonal_(0.0)
        others = xi.sum(1)
        if float(others.max()) > 1 + 1e-9:
            raise OptionError(
                f"fedamp: alpha={self.alpha} and sigma={self.sigma} give the other clients' models a weight of "
                f"{float(others.max()):.3g} in a mixture, but it may not exceed 1; use a smaller alpha, another sigma, "
                "or relative=true"
            )
        return xi + torch.diag(1 - others)


@register("heurfedamp")
@dataclass(frozen=True)
class HeurFedAMP(MessagePassing):
    r"""HeurFedAMP (Huang et al., AAAI 2021): FedAMP with weights by the angle between models,

    .. math:: \xi_{ij} = (1 - \xi_{ii}) \frac{e^{\sigma \cos(w_i, w_j)}}{\sum_{h \ne i} e^{\sigma \cos(w_i, w_h)}},

    with a fixed weight :math:`\xi_{ii}` of the client's own model. `lam` is the whole pull,
    :math:`\lambda / \alpha_k` in the paper's notation. Run it: ``idiolect run heurfedamp``.
    """

    about = About(
        "Clients with models of similar direction attract each other",
        family="mixtures of models",
        paper="huang2021fedamp",
        reveals="the client's own trained model",
        caution="the server keeps every client's latest model; clients get mixtures of them",
    )
    identities = {"heurfedamp(lam=0)": "local"}

    sigma: float = option(10.0, min=0.0, help="how much more weight models of similar direction have")
    self_weight: float = option(0.5, min=0.0, max=1.0, help="weight of the client's own model in its mixture")

    def attention(self, products: Tensor) -> Tensor:
        """xi by the models' cosines, a softmax over the others."""
        if len(products) == 1:
            return torch.ones_like(products)
        norms = products.diag().sqrt().clamp_min(torch.finfo(products.dtype).tiny)
        likeness = self.sigma * products / norms[:, None] / norms[None, :]
        likeness.fill_diagonal_(-torch.inf)
        others = (1 - self.self_weight) * torch.softmax(likeness, dim=1)
        return others + self.self_weight * torch.eye(len(products), dtype=products.dtype, device=products.device)
