"""FedAlt and FedSim: a shared and a personal part of the model, trained in turn or together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..contract import About, ClientContext, ModelError, Phase, Task, option, register
from ..contract.parts.private_layers import PrivateLayers, all_but_last, in_turn


@dataclass(frozen=True)
class PartlyPrivate(PrivateLayers):
    """A method whose first layers, last layers or adapters stay on the client."""

    personal: str = option(
        "output", choices=("output", "input"), help="whether the last or the first layers are personal"
    )
    layers: int = option(1, min=0, help="how many of them are personal")
    units: tuple[str | int, ...] = option((), help="instead, names of the personal modules, such as adapters")

    def __post_init__(self) -> None:
        super().__post_init__()
        # The layers of an nn.Sequential have numbers for names, which expressions read as numbers.
        object.__setattr__(self, "units", tuple(map(str, self.units)))

    def private_names(self, task: Task) -> frozenset[str]:
        """The last layers, the first layers or the named modules."""
        if self.units:
            return self.names_in_units(task)
        if self.personal == "output":
            return task.head(self.layers)
        task.head(self.layers)  # which refuses more layers than there are
        return all_but_last(task, sum(not unit.is_norm for unit in task.units) - self.layers)

    def names_in_units(self, task: Task) -> frozenset[str]:
        """All that the modules in `units` hold."""
        inside = {name: [unit for unit in task.units if f"{unit.name}.".startswith(f"{name}.")] for name in self.units}
        for name, units in inside.items():
            if not units:
                listing = ", ".join(unit.name for unit in task.units)
                raise ModelError(f"{self.name}: the model has no module {name!r} to be personal; its layers: {listing}")
        return task.names_of(unit for units in inside.values() for unit in units)


@register("fedalt")
@dataclass(frozen=True)
class FedAlt(PartlyPrivate):
    r"""FedAlt (Pillutla et al., ICML 2022): the personal part :math:`v_i` is trained first, the shared part u frozen;
    then the shared part at the new :math:`v_i` (LocalAlt); the server averages u,

    .. math:: v_i \leftarrow v_i - \gamma_v \nabla_v F_i(u, v_i), \qquad
        u_i \leftarrow u_i - \gamma_u \nabla_u F_i(u_i, v_i^+).

    FedRep is the case of a personal head with its own number of epochs. Normalisation layers of the frozen part stay in
    evaluation mode. (Not the FedALT of 2025, which trains low-rank adapters of language models.) Run it:
    ``idiolect run fedalt``.
    """

    about = About(
        "Personal and shared part, trained in turn",
        family="private layers",
        paper="pillutla2022fedalt",
        reveals="the shared part",
        stays="the personal part (head, input layers or named units)",
    )
    identities = {"fedalt(own_epochs=3)": "fedrep(head_epochs=3)", "fedalt(layers=0)": "fedavg"}

    own_epochs: int | None = option(None, min=0, help="epochs of the personal part; none is the run's local epochs")
    shared_epochs: int | None = option(None, min=0, help="epochs of the shared part; none is the run's local epochs")
    own_lr: float | None = option(None, above=0.0, help="learning rate of the personal part; none is the run's")

    def phases(self, ctx: ClientContext) -> Sequence[Phase]:
        """The personal part, then the shared one, on the same batches."""
        private = self.private_names(ctx.task)
        return in_turn(self.step, ctx.task, private, self.own_epochs, self.shared_epochs, self.own_lr)


@register("fedsim")
@dataclass(frozen=True)
class FedSim(PartlyPrivate):
    r"""FedSim (Pillutla et al., ICML 2022): both parts are trained together (LocalSim); the server
    averages the shared part u. FedPer is the case of a personal head. Run it: ``idiolect run fedsim``.

    .. math:: (u_i, v_i) \leftarrow (u_i, v_i) - \gamma \nabla F_i(u_i, v_i)
    """

    about = About(
        "Personal and shared part, trained together",
        family="private layers",
        paper="pillutla2022fedalt",
        reveals="the shared part",
        stays="the personal part (head, input layers or named units)",
    )
    identities = {"fedsim": "fedper", "fedsim(layers=0)": "fedavg"}
