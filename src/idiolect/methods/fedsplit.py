"""FedSplit: layers in which some units are shared and the others personal, by a partition that is given or drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..contract import About, ClientContext, OptionError, RoundContext, Slots, Task, mask_of, option, register
from ..contract.parts.unit_splits import SHARED, SplitUnits
from ..core.randomness import generator


@register("fedsplit")
@dataclass(frozen=True)
class FedSplit(SplitUnits):
    r"""FedSplit (Wang, Tang and Li, section 3.2): the units of a layer are shared, :math:`W^s`, or each client's own,
    :math:`W^p_c`; all are trained together, and only what is shared is averaged,

    .. math:: W^s \leftarrow \sum_c \frac{n_c}{\sum_j n_j} W^s_c, \qquad W_c = (W^p_c, W^s).

    Layers that are not split are shared. The partition is given (`shared`) or drawn from the seed, which is the random
    split of the paper's ablations; FedFac finds it. Run it: ``idiolect run fedsplit``.
    """

    about = About(
        "Some units of a layer are shared, the others personal",
        family="masks and sub-models",
        paper="wang2023fedfac",
        reveals="shared rows, and all layers that are not split",
        stays="personal rows",
    )
    identities = {
        "fedsplit(share=1)": "fedavg",
        "fedsplit(layers=head, share=0)": "fedper",
        "fedsplit(layers=[1, 2], share=0)": "lgfedavg",
    }

    shared: tuple[Any, ...] | None = option(
        None, min=0, help="shared units of the split layer, counted from 0 (of several: one list each); none draws"
    )
    share: float = option(0.5, min=0.0, max=1.0, help="share of the units that is shared, where they are not given")
    random: bool = option(True, help="draw the shared units from the seed; else they are the last ones, as in eq. 8")

    @property
    def shares_all(self) -> bool:
        return self.shared is None and self.share == 1

    def shared_units(self, task: Task) -> list[list[int]] | None:
        """The shared units of each split layer, where the option `shared` lists them."""
        if self.shared is None:
            return None
        several = any(isinstance(item, list | tuple) for item in self.shared)
        lists, layers = [list(item) for item in (self.shared if several else [self.shared])], self.split(task)
        if len(lists) != len(layers):
            raise OptionError(
                f"fedsplit: shared holds {len(lists)} lists of units, but {len(layers)} layers are split; "
                "give one list per layer"
            )
        for layer, units in zip(layers, lists, strict=True):
            wrong = [unit for unit in units if not isinstance(unit, int) or unit >= layer.units]
            if wrong or len(set(units)) < len(units):
                raise OptionError(
                    f"fedsplit: shared={units} does not fit the layer {layer.name!r}; give each unit at most once, "
                    f"as a number from 0 to {layer.units - 1}"
                )
        return lists

    def check(self, task: Task) -> None:
        super().check(task)
        self.shared_units(task)

    def first_partition(self, ctx: RoundContext, at: int) -> Tensor:
        """The partition, which never changes."""
        units, lists = self.split(ctx.task)[at].units, self.shared_units(ctx.task)
        count = round(self.share * units)
        if lists is not None:
            chosen = lists[at]
        elif self.random:
            chosen = generator(ctx.training.seed, "fedsplit", at).permutation(units)[:count].tolist()
        else:
            chosen = list(range(units - count, units))
        return torch.isin(torch.arange(units), torch.tensor(chosen, dtype=torch.int64))

    def finish(self, ctx: ClientContext, work: Slots) -> Slots:
        """Personal rows are not sent."""
        work = super().finish(ctx, work)
        shared = self.shared_rows(ctx, work[SHARED])
        masks = {
            mask_of(slot): {n: shared[n].expand_as(leaf) for n, leaf in work[slot].items() if n in shared}
            for slot in ("params", "buffers")
        }
        return {**work, **{slot: mask for slot, mask in masks.items() if mask}}
