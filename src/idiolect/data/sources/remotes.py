"""Which published files can be fetched, from where, and the checksums that their publishers give."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Remote:
    """A published file: where it is, what it is called here, its checksum, and what an archive gives when unpacked."""

    url: str
    file: str
    checksum: str | None = None
    gives: str | None = None


def _idx(base: str, sums: dict[str, str], place: str) -> tuple[Remote, ...]:
    return tuple(Remote(f"{base}/{name}.gz", f"{place}/{name}.gz", each) for name, each in sums.items())


_MNIST = _idx(
    "https://ossci-datasets.s3.amazonaws.com/mnist",
    {
        "train-images-idx3-ubyte": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "train-labels-idx1-ubyte": "d53e105ee54ea40749a09fcbcd1e9432",
        "t10k-images-idx3-ubyte": "9fb629c4189551a2d022fa330f9573f3",
        "t10k-labels-idx1-ubyte": "ec29112dd5afa0611ce80d1b7f02629c",
    },
    "mnist",
)
_FASHION = _idx(
    "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    {
        "train-images-idx3-ubyte": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte": "25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte": "bb300cfdad3c16e7a12a480ee83cd310",
    },
    "fashion-mnist",
)
_WRITERS = Remote(
    "https://raw.githubusercontent.com/facebookresearch/qmnist/master/qmnist-train-labels-idx2-int.gz",
    "mnist/qmnist-train-labels-idx2-int.gz",
    "0058f8dd561b90ffdd0f734c6a30e5e4",
)
_EMNIST = Remote(
    "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip",
    "emnist/gzip.zip",
    "58c8d27c78d21e728a6bc7b3cc06412e",
    "emnist/emnist-byclass-train-images-idx3-ubyte.gz",
)
_LIBSVM = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets/multiclass"
_NEWS = "https://raw.githubusercontent.com/mhjabreel/CharCnn_Keras/master/data/ag_news_csv"
_UCI = "https://archive.ics.uci.edu/static/public"

REMOTES: dict[str, tuple[Remote, ...]] = {
    "mnist": _MNIST,
    "mnist-writers": (*_MNIST[:2], _WRITERS),
    "fashion-mnist": _FASHION,
    "emnist-letters": (_EMNIST,),
    "emnist-balanced": (_EMNIST,),
    "emnist-byclass": (_EMNIST,),
    "cifar10": (
        Remote(
            "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
            "cifar10/cifar-10-python.tar.gz",
            "c58f30108f718f92721af3b95e74349a",
            "cifar10/cifar-10-batches-py",
        ),
    ),
    "cifar100": (
        Remote(
            "https://www.cs.toronto.edu/~kriz/cifar-100-python.tar.gz",
            "cifar100/cifar-100-python.tar.gz",
            "eb9058c3a382ffc7106e4002c42a8d85",
            "cifar100/cifar-100-python",
        ),
    ),
    "tiny-imagenet": (
        Remote(
            "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
            "tiny-imagenet/tiny-imagenet-200.zip",
            "90528d7ca1a48142e341f4ef8d21d0de",
            "tiny-imagenet/tiny-imagenet-200",
        ),
    ),
    "digits5": (
        *_MNIST,
        Remote(
            "http://ufldl.stanford.edu/housenumbers/train_32x32.mat",
            "digits5/train_32x32.mat",
            "e26dedcc434d2e4c54c9b2d4a06d8373",
        ),
        Remote(
            "http://ufldl.stanford.edu/housenumbers/test_32x32.mat",
            "digits5/test_32x32.mat",
            "eb5a983be6a315427106f1b164d9cef3",
        ),
        Remote(f"{_LIBSVM}/usps.bz2", "digits5/usps.bz2", "ec16c51db3855ca6c91edd34d0e9b197"),
        Remote(f"{_LIBSVM}/usps.t.bz2", "digits5/usps.t.bz2", "8ea070ee2aca1ac39742fdd1ef5ed118"),
    ),
    "ag-news": (
        Remote(f"{_NEWS}/train.csv", "ag_news/train.csv", "b1a00f826fdfbd249f79597b59e1dc12"),
        Remote(f"{_NEWS}/test.csv", "ag_news/test.csv", "d52ea96a97a2d943681189a97654912d"),
    ),
    "heart": (Remote(f"{_UCI}/45/heart+disease.zip", "heart/heart+disease.zip", None, "heart/processed.va.data"),),
    "har": (
        Remote(
            f"{_UCI}/240/human+activity+recognition+using+smartphones.zip", "har/har.zip", None, "har/UCI HAR Dataset"
        ),
    ),
    "shakespeare": (
        Remote(
            "https://raw.githubusercontent.com/nltk/nltk_data/gh-pages/packages/corpora/shakespeare.zip",
            "shakespeare/nltk_shakespeare.zip",
            "2332b32a7d83d657092ba4667c2c84c3",
        ),
    ),
}
