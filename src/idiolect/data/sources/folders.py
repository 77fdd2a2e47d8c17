"""Images in folders, one folder per site: any of the user's own, Office-Caltech10, DomainNet, Camelyon17's patches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from ...core.errors import DataError
from ...core.options import option
from ..formats.files import Layout
from ..formats.images import NONE, Joined, Listed, is_image, resize, to_inputs
from ..formats.packed import check_labels, check_rank, name_groups, packed_images, read_mat, read_npz
from ..naming import Naming
from .base import ImageSource, Pool, Source, choose, image_inputs, sources
from .tables import read_table

MODES = {"rgb": "RGB", "grey": "L"}


def scan(
    root: Path, sites: Sequence[str] | None = None, kinds: Sequence[str] | None = None
) -> tuple[list[Path], np.ndarray, np.ndarray, list[str]]:
    """The image files under root/site/class, their labels and sites, and the names of the classes in order."""
    present = sites or _folders(root)
    if not present:
        raise DataError(f"{root} has no folders; it must hold a folder per site, and each of these one per class")
    classes = list(kinds or sorted({kind for site in present for kind in _folders(root / site)}))
    files = [
        (path, classes.index(kind), site)
        for site in present
        for kind in _folders(root / site)
        if kind in classes
        for path in sorted((root / site / kind).iterdir())
        if path.is_file() and is_image(path)
    ]
    if not files:
        raise DataError(f"{root} holds no images; put them at site/class/name.png, a folder per site and per class")
    empty = set(present) - {site for _, _, site in files}
    if empty:
        raise DataError(f"{root / min(empty)} holds no images in folders of classes; leave it out or fill it")
    return [p for p, _, _ in files], np.array([y for _, y, _ in files]), np.array([s for _, _, s in files]), classes


def _folders(root: Path) -> list[str]:
    return sorted(p.name for p in root.iterdir() if p.is_dir() and not p.name.startswith(".")) if root.is_dir() else []


@sources.register("folder", "images")
@dataclass(frozen=True)
class ImageFolder(Source):
    """Images at PATH/site/class/name.png: every site is a client, classes are numbered by name.

    `folder:scans` reads the folder scans; `folder(scans, side=64)` brings all images to 64 x 64 pixels.
    """

    own: ClassVar[bool] = True
    title: ClassVar[str] = "own images: a folder per site, in it a folder per class"
    licence: ClassVar[str] = "your own"
    size: ClassVar[str] = "as many as there are"
    groups: ClassVar[str] = "the sites"

    path: str | None = option(None, help="the folder of the sites")
    side: int | None = option(
        None, min=1, help="pixels to which images are brought; none leaves them, then all must be alike"
    )
    mode: str = option("rgb", choices=tuple(MODES), help="three channels or one")
    normalise: str = option(NONE, choices=(NONE, "half", "imagenet"), help="subtract and divide by constants")
    samples: int | None = option(None, min=1, help="take a random part of this many samples")
    lazy: bool | None = option(
        None, help="decode images when they are needed; none does so where all would take more than 768 MB"
    )
    seed: int = option(0, min=0, help="determines that part")

    def where(self) -> str:
        """What to put where."""
        return f"put images at {self.path or 'PATH'}/site/class/name.png, and write folder:{self.path or 'PATH'}"

    def available(self) -> bool:
        """Whether the folder is there."""
        return self.path is not None and Path(self.path).is_dir()

    def load(self) -> Pool:
        """The pool, with the sites as groups."""
        if not self.available():
            raise DataError(f"folder: {self.path or 'no path'} is no folder; {self.where()}")
        paths, labels, sites, classes = scan(Path(str(self.path)))
        index = choose("folder", len(labels), self.samples, self.seed)
        x = image_inputs(Listed(paths, self.side, MODES[self.mode]), index, self.normalise, self.lazy)
        name, names = Path(str(self.path)).name, Naming(classes=tuple(classes))
        return Pool(x, torch.from_numpy(labels[index]), sites[index], len(classes), name, names=names)


@dataclass(frozen=True)
class Sites(ImageSource):
    """Published images of several sites with the same classes."""

    sites: ClassVar[tuple[str, ...]] = ()
    kinds: ClassVar[tuple[str, ...]] = ()

    side: int | None = option(
        None, min=8, help="pixels to which images are brought; none is 256, or the compact file's"
    )

    def from_folders(self, folders: Mapping[str, Path]) -> Pool:
        """The pool from root/site/class."""
        root = next(iter(folders.values())).parent
        paths, labels, sites, classes = scan(root, [path.name for path in folders.values()], self.kinds or None)
        return self.image_pool(Listed(paths, self.side or 256), labels, len(classes), sites)


@sources.register("office-caltech10", "office")
@dataclass(frozen=True)
class OfficeCaltech(Sites):
    """Ten kinds of office things, pictured by a shop, a library of pictures, a camera and a webcam. `features=surf`
    gives the published SURF histograms instead of images."""

    title: ClassVar[str] = "Office-Caltech10, pictures of ten kinds of things"
    licence: ClassVar[str] = "none stated by the publishers"
    size: ClassVar[str] = "2,533 samples, 3 x 256 x 256 (3 x 96 x 96 in the compact file), 10 classes"
    groups: ClassVar[str] = "4 domains: amazon 958, caltech10 1,123, dslr 157, webcam 295 samples"
    papers: ClassVar[str] = "LG-Mix"
    sites: ClassVar[tuple[str, ...]] = ("amazon", "caltech10", "dslr", "webcam")
    layouts: ClassVar[dict[str, Layout]] = {
        "folders": Layout("office-caltech10", tuple(f"{site}/" for site in sites)),
        "caltech": Layout("office-caltech10", ("amazon/", "caltech/", "dslr/", "webcam/")),
        "jpeg": Layout(".", ("office_caltech10_96px_jpeg.npz",)),
    }
    note: ClassVar[str] = "Each domain holds a folder of images per class, as in amazon/bike/frame_0001.jpg"

    features: str = option("images", choices=("images", "surf"), help="images, or 800 counts of SURF features")

    def load(self) -> Pool:
        """The pool, with the domains as groups."""
        if self.features == "surf":
            return self._surf()
        kind, paths = self.find()
        if kind != "jpeg":
            return self.from_folders(paths)
        (path,) = paths.values()
        images, labels = packed_images(path, "")
        arrays = read_npz(path, ["domain", "domains"])
        groups = name_groups(path, arrays["domains"], arrays["domain"], len(images))
        return self.image_pool(Joined([images], self.side), check_labels(path, labels, 10), 10, groups)

    def _surf(self) -> Pool:
        layout = Layout("office_caltech10_surf", tuple(f"{site}.mat" for site in self.sites))
        if lacking := layout.missing(self.path):
            raise DataError(f"{self.name}: {', '.join(lacking)} not found. To use it, {layout.where(self.path)}.")
        tables = {}
        for site, path in zip(self.sites, layout.paths(self.path).values(), strict=True):
            tables[site] = read_mat(path, ["fts", "labels"])
            check_rank(path, "the features", tables[site]["fts"], 2)
            if tables[site]["fts"].shape != (tables[site]["labels"].size, 800):
                raise DataError(f"{path} must have 800 features and a label per image; it is another file")
        counts = np.concatenate([table["fts"] for table in tables.values()]).astype(np.float32)
        # Images have different numbers of features: counts are divided by their mean over the image's 800 kinds.
        x = torch.from_numpy(counts / np.maximum(1 / 800, counts.mean(1, keepdims=True)))
        labels = check_labels(
            self.name, np.concatenate([table["labels"].reshape(-1) for table in tables.values()]), 10, 1
        )
        groups = np.repeat(np.array(self.sites), [len(table["fts"]) for table in tables.values()])
        index = self.choose_samples(len(labels))
        return Pool(x[index], torch.from_numpy(labels[index]), groups[index], 10, f"{self.name}-surf")


@sources.register("domainnet")
@dataclass(frozen=True)
class DomainNet(Sites):
    """The ten classes of DomainNet that FedBN and LG-Mix use, in six styles."""

    title: ClassVar[str] = "DomainNet, ten classes"
    licence: ClassVar[str] = "non-commercial research (Peng et al., 2019)"
    size: ClassVar[str] = "about 16,000 samples, 3 x 256 x 256, 10 classes"
    groups: ClassVar[str] = "6 domains"
    papers: ClassVar[str] = "LG-Mix"
    sites: ClassVar[tuple[str, ...]] = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
    kinds: ClassVar[tuple[str, ...]] = (
        "bird", "feather", "headphones", "ice_cream", "teapot", "tiger", "whale", "windmill", "wine_glass", "zebra",
    )  # fmt: skip
    layouts: ClassVar[dict[str, Layout]] = {"folders": Layout("domainnet", tuple(f"{site}/" for site in sites))}
    note: ClassVar[str] = (
        "Each style is an archive at ai.bu.edu/M3SDA and holds a folder of images per class, as in "
        "clipart/bird/clipart_029_000001.jpg; other classes than the ten are left out"
    )

    def load(self) -> Pool:
        """The pool, with the styles as groups."""
        _, folders = self.find()
        return self.from_folders(folders)


@sources.register("camelyon17")
@dataclass(frozen=True)
class Camelyon17(ImageSource):
    """Patches of lymph nodes from five hospitals, with and without tumour, in the layout of the WILDS collection. All
    patches take 50 GB of memory; `samples=10000` takes a random part."""

    title: ClassVar[str] = "Camelyon17 patches (WILDS layout), tumour or not"
    licence: ClassVar[str] = "CC0 1.0"
    size: ClassVar[str] = "455,954 samples, 3 x 96 x 96, 2 classes"
    groups: ClassVar[str] = "5 hospitals"
    papers: ClassVar[str] = "LG-Mix"
    layouts: ClassVar[dict[str, Layout]] = {"wilds": Layout("camelyon17_v1.0", ("metadata.csv", "patches/"))}
    note: ClassVar[str] = (
        "It is camelyon17_v1.0 of the WILDS collection (wilds.stanford.edu); patches are at "
        "patches/patient_004_node_4/patch_patient_004_node_4_x_3328_y_21792.png"
    )

    side: int | None = option(None, min=8, help="pixels to which patches are brought; none leaves 96")

    def load(self) -> Pool:
        """The pool, with the hospitals as groups."""
        _, files = self.find()
        columns = ("patient", "node", "x_coord", "y_coord", "tumor", "center")
        table = read_table(files["metadata.csv"], columns)
        index = self.choose_samples(len(table))
        part = table[index]
        paths = []
        for patient, node, x, y in part.select(columns[:4]).iter_rows():
            place = f"patient_{int(patient):03d}_node_{int(node)}"
            paths.append(files["patches/"] / place / f"patch_{place}_x_{int(x)}_y_{int(y)}.png")
        labels = part["tumor"].to_numpy().astype(np.int64)
        if len(labels) and not np.isin(labels, (0, 1)).all():
            raise DataError(f"{files['metadata.csv']}: the column tumor must be 0 or 1; fetch it again")
        if self.side is None:
            inputs = image_inputs(Listed(paths), np.arange(len(paths)), self.normalise)
        else:
            inputs = to_inputs(resize(Listed(paths).take(np.arange(len(paths))), self.side), self.normalise)
        return Pool(inputs, torch.from_numpy(labels), part["center"].to_numpy(), 2, self.name)
