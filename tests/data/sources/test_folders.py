"""Images in folders per site: own ones, the published domain sets, hospital patches, and masks."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat

from idiolect.core.errors import DataError
from idiolect.data import load
from idiolect.data.sources import Camelyon17, DomainNet, ImageFolder, OfficeCaltech, Retina

RNG = np.random.default_rng(0)


def picture(path: Path, width: int = 20, height: int = 16, mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    shape = (height, width) if mode == "L" else (height, width, 3)
    Image.fromarray(RNG.integers(0, 256, shape).astype(np.uint8)).save(path)


@pytest.fixture
def sites(tmp_path: Path) -> Path:
    for site in ("north", "south"):
        for kind in ("cat", "dog"):
            for at in range(3):
                picture(tmp_path / site / kind / f"{at}.png")
    return tmp_path


def test_sites_are_clients_and_folders_are_classes(sites):
    (sites / "north" / "dog" / "notes.txt").write_text("no image")
    picture(sites / "north" / "dog" / ".hidden.png")
    picture(sites / ".trash" / "dog" / "0.png")
    federation = load(f"folder:{sites}", split=(1.0, 0.0, 0.0))
    assert [client.name for client in federation.clients] == ["north", "south"]
    assert federation.input_shape == (3, 16, 20)
    assert federation.classes == 2
    first = torch.from_numpy(np.array(Image.open(sites / "north" / "cat" / "0.png"))).permute(2, 0, 1) / 255
    assert torch.equal(federation.clients[0].x[0], first)
    assert federation.clients[0].y[:6].tolist() == [0, 0, 0, 1, 1, 1]


def test_a_class_that_one_site_lacks_keeps_its_number(sites):
    for path in (sites / "north" / "cat").iterdir():
        path.unlink()
    (sites / "north" / "cat").rmdir()
    pool = ImageFolder(path=str(sites)).load()
    assert pool.y[pool.groups == "north"].tolist() == [1, 1, 1]


def test_images_of_different_sizes_need_a_side(sites):
    picture(sites / "south" / "dog" / "9.png", 30, 30)
    with pytest.raises(DataError, match=r"different sizes.*0\.png has 20 x 16 pixels.*9\.png has 30 x 30.*give side="):
        ImageFolder(path=str(sites)).load()
    assert ImageFolder(path=str(sites), side=24).load().x.shape == (13, 3, 24, 24)
    assert ImageFolder(path=str(sites), side=24, mode="grey").load().x.shape == (13, 1, 24, 24)


@pytest.mark.parametrize("damage", ["empty", "text", "cut"])
def test_a_damaged_image_is_named(sites, damage):
    path = sites / "south" / "dog" / "1.png"
    path.write_bytes({"empty": b"", "text": b"<html>", "cut": path.read_bytes()[:-300]}[damage])
    with pytest.raises(DataError, match=r"south/dog/1\.png is no image that can be read"):
        ImageFolder(path=str(sites)).load()


def test_folders_that_hold_nothing_say_what_to_put_there(tmp_path):
    with pytest.raises(DataError, match="folder: no path is no folder; put images at PATH/site/class"):
        ImageFolder().load()
    with pytest.raises(DataError, match="must hold a folder per site"):
        ImageFolder(path=str(tmp_path)).load()
    (tmp_path / "north" / "cat").mkdir(parents=True)
    with pytest.raises(DataError, match="holds no images; put them at site/class"):
        ImageFolder(path=str(tmp_path)).load()
    picture(tmp_path / "south" / "cat" / "0.png")
    with pytest.raises(DataError, match=r"north holds no images in folders of classes; leave it out"):
        ImageFolder(path=str(tmp_path)).load()


def test_a_part_of_a_folder_decodes_only_that_part(sites):
    assert ImageFolder(path=str(sites), samples=4).load().x.shape[0] == 4
    with pytest.raises(DataError, match="samples=13 is more than the 12 there are"):
        ImageFolder(path=str(sites), samples=13).load()


# -- published sets ------------------------------------------------------------------------------------------


def test_office_caltech_from_its_folders(tmp_path):
    for site in OfficeCaltech.sites:
        for kind in ("bike", "mug"):
            picture(tmp_path / site / kind / "0.jpg", 30 + len(site), 20)
    pool = OfficeCaltech(path=str(tmp_path), side=32, normalise="imagenet").load()
    assert pool.x.shape == (8, 3, 32, 32)
    assert sorted(set(pool.groups)) == ["amazon", "caltech10", "dslr", "webcam"]
    assert OfficeCaltech(path=str(tmp_path), samples=1).load().input_shape == (3, 256, 256)
    (tmp_path / "caltech10").rename(tmp_path / "caltech")  # as other copies call it
    assert sorted(set(OfficeCaltech(path=str(tmp_path)).load().groups)) == ["amazon", "caltech", "dslr", "webcam"]


def encoded(count: int) -> dict[str, np.ndarray]:
    """Encoded images one after another, and where each begins."""
    parts = []
    for _ in range(count):
        raw = io.BytesIO()
        Image.fromarray(RNG.integers(0, 256, (32, 32, 3)).astype(np.uint8)).save(raw, "JPEG")
        parts.append(raw.getvalue())
    offset = np.cumsum([0, *map(len, parts)])
    return {"img": np.frombuffer(b"".join(parts), np.uint8), "offset": offset}


DOMAINS = np.array(OfficeCaltech.sites)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({}, None),
        ({"label": [0, 1, 2]}, "4 images but 3 labels"),
        ({"label": [0, 1, 2, 10]}, "has the label 10"),
        ({"label": ["a", "b", "c", "d"]}, "label must be numbers in 1 dimensions"),
        ({"label": [0, 0.5, 1, 1]}, "labels that are no whole numbers"),
        ({"domain": [0, 1, 2, 4]}, "does not name a site for each of its 4 samples"),
        ({"domain": [0, 1, 2]}, "does not name a site"),
        ({"domain": 3}, "the numbers of the sites must be numbers in 1 dimensions"),
        ({"offset": [0, 5]}, "the offsets do not fit"),
        ({"offset": ["a", "b"]}, "the offsets must be numbers"),
        ({"img": np.zeros((2, 2), np.uint8)}, "the images must be numbers in 1 dimensions"),
    ],
)
def test_the_compact_file_of_office_caltech_and_what_can_be_wrong_with_it(tmp_path, change, message):
    whole = {**encoded(4), "label": [0, 1, 2, 9], "domain": [0, 1, 2, 3], "domains": DOMAINS}
    np.savez(tmp_path / "office_caltech10_96px_jpeg.npz", **(whole | change))
    source = OfficeCaltech(path=str(tmp_path))
    if message is None:
        assert source.load().groups.tolist() == DOMAINS.tolist()
        return
    with pytest.raises(DataError, match=message):
        source.load()


def test_office_caltech_as_surf_features(tmp_path):
    for at, site in enumerate(OfficeCaltech.sites, start=1):
        savemat(tmp_path / f"{site}.mat", {"fts": np.full((at, 800), at, np.uint8), "labels": np.full((at, 1), at)})
    pool = OfficeCaltech(path=str(tmp_path), features="surf").load()
    assert pool.x.shape == (10, 800)
    assert torch.allclose(pool.x.mean(1), torch.ones(10))
    assert pool.y.tolist() == [0, 1, 1, 2, 2, 2, 3, 3, 3, 3]
    savemat(tmp_path / "dslr.mat", {"fts": np.zeros((3, 700), np.uint8), "labels": np.ones((3, 1))})
    with pytest.raises(DataError, match=r"dslr\.mat must have 800 features and a label per image"):
        OfficeCaltech(path=str(tmp_path), features="surf").load()
    (tmp_path / "dslr.mat").unlink()
    with pytest.raises(DataError, match=r"dslr\.mat not found"):
        OfficeCaltech(path=str(tmp_path), features="surf").load()


def test_domainnet_keeps_its_ten_classes(tmp_path):
    for site in DomainNet.sites:
        for kind in ("zebra", "bird", "aircraft"):
            picture(tmp_path / site / kind / "0.png")
    pool = DomainNet(path=str(tmp_path), side=16).load()
    assert (len(pool.y), pool.classes, sorted(set(pool.y.tolist()))) == (12, 10, [0, 9])


def test_camelyon_patches_by_hospital(tmp_path):
    lines = [",patient,node,x_coord,y_coord,tumor,slide,center,split"]
    for at in range(4):
        place = f"patient_{at:03d}_node_2"
        picture(tmp_path / "patches" / place / f"patch_{place}_x_{at * 32}_y_64.png", 96, 96)
        lines.append(f"{at},{at},2,{at * 32},64,{at % 2},0,{at // 2},0")
    (tmp_path / "metadata.csv").write_text("\n".join(lines))
    pool = Camelyon17(path=str(tmp_path)).load()
    assert pool.x.shape == (4, 3, 96, 96)
    assert (pool.y.tolist(), pool.groups.tolist(), pool.classes) == ([0, 1, 0, 1], [0, 0, 1, 1], 2)
    assert Camelyon17(path=str(tmp_path), samples=2, side=32).load().x.shape == (2, 3, 32, 32)
    (tmp_path / "metadata.csv").write_text("patient,node\n1,2\n")
    with pytest.raises(DataError, match=r"metadata\.csv has no column 'x_coord'"):
        Camelyon17(path=str(tmp_path)).load()


# -- masks -------------------------------------------------------------------------------------------------


@pytest.fixture
def eyes(tmp_path: Path) -> Path:
    for site in ("drive", "chase"):
        for at in range(2):
            picture(tmp_path / site / "images" / f"{at}.jpg", 40, 32)
            mask = np.zeros((32, 40), np.uint8)
            mask[:16] = 255
            (tmp_path / site / "masks").mkdir(exist_ok=True)
            Image.fromarray(mask).save(tmp_path / site / "masks" / f"{at}.png")
    return tmp_path


def test_masks_become_classes_of_pixels(eyes):
    pool = Retina(path=str(eyes), side=32).load()
    assert pool.x.shape == (4, 3, 32, 32)
    assert pool.y.shape == (4, 32, 32)
    assert pool.y[0, :15].all()
    assert not pool.y[0, 17:].any()
    federation = pool.federation(split=(1.0, 0.0, 0.0))
    assert [client.name for client in federation.clients] == ["chase", "drive"]
    assert (federation.target_shape, federation.classes) == ((32, 32), 2)


def test_masks_and_sites_of_the_compact_file_must_fit(tmp_path):
    whole = {**encoded(2), "vessel": np.zeros((2, 32, 32), np.uint8), "site": [0, 1], "sites": ["drive", "chase"]}
    for change, message in (
        ({"vessel": np.zeros((3, 32, 32), np.uint8)}, "2 images but 3 masks"),
        ({"vessel": np.zeros(2, np.uint8)}, "the masks must be numbers in 3 dimensions"),
        ({"site": [0, 2]}, "does not name a site"),
    ):
        np.savez(tmp_path / "retina_vessels_2site_256px_jpeg.npz", **(whole | change))
        with pytest.raises(DataError, match=message):
            Retina(path=str(tmp_path)).load()


def test_an_image_without_a_mask_is_named(eyes, tmp_path_factory):
    (eyes / "drive" / "masks" / "1.png").unlink()
    with pytest.raises(DataError, match=r"drive/images/1\.jpg has no mask; put one at"):
        Retina(path=str(eyes)).load()
    empty = Retina(path=str(tmp_path_factory.mktemp("none")))
    assert not empty.available()
    with pytest.raises(DataError, match=r"no images found\. To use it, put .*masks"):
        empty.load()
