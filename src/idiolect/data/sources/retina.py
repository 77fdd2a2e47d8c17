"""Segmentation: images and, for each, a mask of what is to be found, at several sites."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch

from ...core.errors import DataError
from ...core.options import option
from ..formats.files import Layout, data_root
from ..formats.images import Images, Joined, Listed, Packed, Stored, is_image, to_inputs
from ..formats.packed import check_offsets, check_rank, name_groups, read_npz
from .base import ImageSource, Pool, sources


@sources.register("retina", "retinal")
@dataclass(frozen=True)
class Retina(ImageSource):
    """Fundus images with masks, one client per site: own ones at PATH/site/images/name.png and
    PATH/site/masks/name.png, or the vessels of DRIVE and CHASE_DB1 in a compact file. Mask pixels of at least
    `threshold` are class 1."""

    title: ClassVar[str] = "retinal segmentation: images and masks per site"
    licence: ClassVar[str] = "DRIVE and CHASE_DB1 have terms of their own"
    size: ClassVar[str] = "68 samples in the compact file, 3 x 256 x 256, 2 classes of pixels"
    groups: ClassVar[str] = "the sites; in the compact file DRIVE 40, CHASE_DB1 28 samples"
    papers: ClassVar[str] = "LG-Mix (there: six sites, optic disc and cup)"
    compact: ClassVar[Layout] = Layout(".", ("retina_vessels_2site_256px_jpeg.npz",))

    side: int | None = option(None, min=16, help="pixels to which images are brought; none is 256")
    threshold: float = option(0.5, above=0.0, max=1.0, help="share of white from which a mask's pixel counts")
    made_site: bool = option(False, help="make a site of every other image of the first: darker, colours swapped")

    @property
    def _root(self) -> Path | None:
        """The folder of the sites, if there is one."""
        root = Path(self.path) if self.path else data_root() and Path(str(data_root())) / "retina"
        return root if root and root.is_dir() and any(root.glob("*/masks")) else None

    def where(self) -> str:
        """Which files to put where."""
        root = self.path or "$IDIOLECT_DATA/retina"
        files = f"{root}/site/images/name.png and {root}/site/masks/name.png"
        return f"put {files} for each site; or {self.compact.where(self.path)}"

    def available(self) -> bool:
        """Whether there are sites, or the compact file."""
        return self._root is not None or not self.compact.missing(self.path)

    def load(self) -> Pool:
        """The pool, with the sites as groups and a class per pixel."""
        if not self.available():
            raise DataError(f"{self.name}: no images found. To use it, {self.where()}.")
        images, masks, sites = self._folders(self._root) if self._root else self._compact()
        index = self.choose_samples(len(sites))
        x = to_inputs(images.take(index), self.normalise)
        y = torch.from_numpy(masks.take(index)[:, 0] >= 255 * self.threshold).long()
        x, sites = make_site(x, sites[index]) if self.made_site else (x, sites[index])
        return Pool(x, y, sites, 2, self.name)

    def _compact(self) -> tuple[Images, Images, np.ndarray]:
        (path,) = self.compact.paths(self.path).values()
        arrays = read_npz(path, ["img", "offset", "vessel", "site", "sites"])
        check_offsets(path, arrays["img"], arrays["offset"])
        images = Packed(arrays["img"], arrays["offset"].astype(np.int64), str(path))
        check_rank(path, "the masks", arrays["vessel"], 3, "u")
        if len(arrays["vessel"]) != len(images):
            raise DataError(f"{path}: {len(images)} images but {len(arrays['vessel'])} masks; fetch it again")
        masks = Joined([Stored(arrays["vessel"])], self.side)
        return Joined([images], self.side), masks, name_groups(path, arrays["sites"], arrays["site"], len(images))

    def _folders(self, root: Path) -> tuple[Images, Images, np.ndarray]:
        images, masks, sites = [], [], []
        for folder in sorted(mask_folder.parent for mask_folder in root.glob("*/masks")):
            known = {path.stem: path for path in sorted((folder / "masks").iterdir()) if is_image(path)}
            site_images = [path for path in sorted((folder / "images").glob("*")) if is_image(path)]
            for path in site_images:
                if path.stem not in known:
                    raise DataError(f"{path} has no mask; put one at {folder / 'masks' / path.name}, or leave it out")
            images += site_images
            masks += [known[path.stem] for path in site_images]
            sites += [folder.name] * len(site_images)
        if not images:
            raise DataError(f"{root} has masks, but no images beside them; {self.where()}")
        side = self.side or 256
        return Listed(images, side), Listed(masks, side, "L"), np.array(sites)


def make_site(x: torch.Tensor, sites: np.ndarray) -> tuple[torch.Tensor, np.ndarray]:
    """The images with a site that was made of every other image of the first one, as if by another camera: at half the
    brightness, with red and blue swapped.

    >>> x, sites = make_site(torch.ones(3, 3, 1, 1), np.array(["a", "a", "b"]))
    >>> x[:, 0, 0, 0].tolist(), sites.tolist()
    ([1.0, 0.5, 1.0], ['a', 'a (made)', 'b'])
    """
    chosen = np.flatnonzero(sites == sites[0])[1::2]
    x, names = x.clone(), sites.astype(object)
    x[chosen] = x[chosen].flip(1) / 2
    names[chosen] = f"{sites[0]} (made)"
    return x, names.astype(str)
