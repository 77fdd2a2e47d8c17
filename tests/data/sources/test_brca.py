"""Survival by region: FLamby's clients, test patients, loss and metric."""

import pytest

import idiolect
from idiolect.core.errors import DataError
from idiolect.data import load
from idiolect.data.sources import TcgaBrca
from idiolect.data.sources.brca import REGIONS


@pytest.fixture
def folder(tmp_path):
    """Ten patients of each region, two of them for test, and one of nowhere."""
    codes = {f"A{at}": region for at, region in enumerate(REGIONS)} | {"ZZ": "Other"}
    patients = [(f"TCGA-A{at}-{n:04}", at, n) for at in range(6) for n in range(10)]
    rows = [f"{pid},{45 + at},{n % 2},{float(n % 4 == 0)},{float(n)}" for pid, at, n in patients]
    rows += ["TCGA-ZZ-0000,50,0,1.0,3.0"]
    folds = [f"{pid},{'test' if n >= 8 else 'train'},x" for pid, _, n in patients]
    for name, lines in (
        ("brca.csv", ["pid,age_at_index,stage,E,T", *rows]),
        ("centers.csv", ["TSS Code,Region", *(f"{code},{region}" for code, region in codes.items())]),
        ("train_test_split.csv", ["pid,fold,fold2", *folds]),
    ):
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    return tmp_path


def test_regions_are_clients_with_the_given_test_patients(folder):
    data = TcgaBrca(path=str(folder)).federation()
    assert [client.name for client in data.clients] == list(REGIONS)
    assert (len(data["West"].train), len(data["West"].val), len(data["West"].test)) == (6, 2, 2)
    assert (data.loss, data.names.features) == ("cox", ("age_at_index", "stage"))
    assert data["South"].split("test")[1].tolist() == [8.0, -9.0]
    assert 0.5 in data["South"].y.tolist()  # an event on day 0
    assert data["South"].x[0, 0] == pytest.approx((46 - 58) / 13)


def test_the_loss_and_the_metric_are_cox_and_concordance(folder):
    result = idiolect.run("fedavg", f"tcga-brca(path={folder})", model="linear", rounds=1, engine="loop")
    assert (result.summary["metric"], result.plan.tasks[0].loss_fn.__name__) == ("c_index", "cox")
    assert result.summary["constants"]["own"]["mean"] == 0.5


def test_other_clients_and_files_are_refused(folder):
    for options, message in (({"partition": "iid"}, "leave out the partition"), ({"clients": 3}, "has 6 regions")):
        with pytest.raises(DataError, match=message):
            load(f"tcga-brca(path={folder})", **options)
    (folder / "train_test_split.csv").write_text("pid,fold\nTCGA-A0-0000,dev\n")
    with pytest.raises(DataError, match="not train or test"):
        load(f"tcga-brca(path={folder})")


@pytest.mark.data
@pytest.mark.skipif(not TcgaBrca().available(), reason="Fed-TCGA-BRCA is not under IDIOLECT_DATA")
def test_the_published_files():
    data = TcgaBrca().federation()
    sizes = [(len(client.train) + len(client.val), len(client.test)) for client in data.clients]
    assert sizes == [(248, 63), (156, 40), (164, 42), (129, 33), (129, 33), (40, 11)]
    assert data.input_shape == (39,)
