"""Fed-TCGA-BRCA: survival of patients with breast cancer, by region, as in FLamby."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from ...core.errors import DataError
from ..federation import Federation
from ..formats.files import Layout
from ..formats.frames import read_table
from ..partitions.base import Partition, partitions
from ..partitions.schemes import Group
from ..splits import SHARES, Unseen
from .base import FileSource, Pool, sources

REGIONS = ("Northeast", "South", "West", "Midwest", "Europe", "Canada")
AGE = "age_at_index"
MEAN_AGE, DEVIATION_OF_AGE = 58, 13
FIRST_DAY = 0.5
"""The time of an event on day 0, since times below or at 0 are those of patients without an event."""


@sources.register("tcga-brca", "fed-tcga-brca")
@dataclass(frozen=True)
class TcgaBrca(FileSource):
    """Days until death of patients with breast cancer, from 39 clinical facts, by the region of the hospital.

    As in FLamby (du Terrail et al., NeurIPS 2022): the six regions are the clients, the loss is Cox's, the metric the
    concordance index, and FLamby's own test patients are kept; validation patients are cut from the others. A target is
    the number of days, below 0 for patients who were alive when last seen. Patients of other regions are left out. Age
    is scaled by a fixed round mean and deviation (58 and 13 years); all other inputs are 0 or 1.
    """

    title: ClassVar[str] = "TCGA breast cancer, survival (FLamby)"
    licence: ClassVar[str] = "GDC open access; FLamby's code MIT"
    size: ClassVar[str] = "1,088 samples, 39 numbers, times to events"
    groups: ClassVar[str] = "6 regions: 311, 196, 206, 162, 162 and 51 patients"
    layouts: ClassVar[dict[str, Layout]] = {
        "flamby": Layout("fed_tcga_brca", ("brca.csv", "centers.csv", "train_test_split.csv")),
        "own": Layout("tabular/fed_tcga_brca", ("brca.csv", "centers.csv", "train_test_split.csv")),
    }
    note: ClassVar[str] = "The three files are in flamby/datasets/fed_tcga_brca of github.com/owkin/FLamby"

    def load(self) -> Pool:
        """Nothing but an error: of missing files, or that these data come as clients."""
        self.find()
        return super().load()

    def federation(
        self,
        partition: str | Partition | None = None,
        *,
        clients: int | None = None,
        split: Sequence[float] | None = None,
        seed: int = 0,
        unseen: Unseen = 0.0,
        public: Any = None,
    ) -> Federation:
        """The regions, with FLamby's test patients."""
        if partition is not None and not isinstance(partitions.build(partition), Group):
            raise DataError(f"{self.name} comes with FLamby's clients and test patients; leave out the partition")
        if clients not in (None, len(REGIONS)):
            raise DataError(f"{self.name} has {len(REGIONS)} regions; leave out clients={clients}")
        names, regions = self._read()
        federation = Federation.from_clients(
            regions,
            split=SHARES if split is None else split,
            seed=seed,
            name=self.name,
            unseen=unseen,
            public=public,
            feature_names=names,
        )
        return replace(federation, loss="cox")

    def _read(self) -> tuple[list[str], dict[str, dict[str, tuple[np.ndarray, np.ndarray]]]]:
        """The names of the inputs, and the regions with training and test patients."""
        _, paths = self.find()
        table = read_table(paths["brca.csv"], ("pid", AGE, "E", "T"))
        sites = read_table(paths["centers.csv"], ("TSS Code", "Region"))
        folds = read_table(paths["train_test_split.csv"], ("pid", "fold"))
        region_of = dict(zip(sites["TSS Code"], sites["Region"], strict=True))
        fold_of = dict(zip(folds["pid"], folds["fold"], strict=True))
        chosen = [at for at, patient in enumerate(table["pid"]) if region_of.get(patient[5:7]) in REGIONS]
        table = table[[chosen[place] for place in self.choose_samples(len(chosen))]]
        names = [name for name in table.columns if name not in ("pid", "E", "T")]
        x = table.select(names).to_numpy().astype(np.float32)
        x[:, names.index(AGE)] = (x[:, names.index(AGE)] - MEAN_AGE) / DEVIATION_OF_AGE
        days = np.maximum(table["T"].to_numpy().astype(np.float32), FIRST_DAY)
        y = np.where(table["E"].to_numpy() == 1, days, -days)
        region = np.array([region_of[patient[5:7]] for patient in table["pid"]])
        fold = np.array([str(fold_of.get(patient)) for patient in table["pid"]])
        if unknown := sorted(set(fold) - {"train", "test"}):
            raise DataError(
                f"{paths['train_test_split.csv']} has patients of the fold {unknown[0]}, not train or test; fetch it"
                " again"
            )
        parts = {name: {which: (region == name) & (fold == which) for which in ("train", "test")} for name in REGIONS}
        return names, {
            name: {which: (x[rows], y[rows]) for which, rows in by_fold.items() if rows.any()}
            for name, by_fold in parts.items()
            if by_fold["train"].any()
        }
