"""Text: words and characters become tokens reproducibly; LEAF files, plays and news are read."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from idiolect.core.errors import DataError
from idiolect.data.sources import AgNews, Femnist, Shakespeare
from idiolect.data.sources.agnews import encode, make_vocabulary
from idiolect.data.sources.shakespeare import ALPHABET, letters
from idiolect.data.words import tokenise

# -- words -------------------------------------------------------------------------------------------------


def test_words_are_split_by_fixed_rules():
    assert tokenise("Don't PANIC, said Bob (42)!") == [
        "don",
        "'",
        "t",
        "panic",
        ",",
        "said",
        "bob",
        "(",
        "42",
        ")",
        "!",
    ]


def test_the_vocabulary_does_not_depend_on_the_order_of_texts():
    texts = [["b", "a"], ["c", "b"], ["a"]]
    assert make_vocabulary(texts) == make_vocabulary(texts[::-1]) == {"a": 2, "b": 3, "c": 4}
    assert make_vocabulary(texts, limit=3) == {"a": 2}
    assert encode([["a", "z"]], {"a": 2}, 4).tolist() == [[2, 1, 0, 0]]


@pytest.fixture
def news(tmp_path: Path) -> Path:
    (tmp_path / "train.csv").write_text(
        '"1","War, and","peace"\n"2","A goal","by ""Bob"""\n"3","Shares fall","again"\n'
    )
    (tmp_path / "test.csv").write_text('"4","New chip","is fast"\n')
    return tmp_path


def test_news_are_titles_and_descriptions(news):
    pool = AgNews(path=str(news), length=5, verify=False).load()
    assert (pool.x.shape, pool.y.tolist(), pool.classes) == ((4, 5), [0, 1, 2, 3], 4)
    assert pool.vocabulary == 2 + 15
    assert pool.tokens
    assert (pool.x[1] > 1).tolist() == [True] * 4 + [False]  # a goal by bob
    assert AgNews(path=str(news), vocabulary=5, verify=False).load().vocabulary == 5


def test_plain_news_are_compared_with_the_publishers_checksum(news):
    with pytest.raises(DataError, match=r"train\.csv has the md5 checksum"):
        AgNews(path=str(news)).load()


def test_the_compact_news_have_kinds(news):
    (news / "train.csv").unlink()
    text = "label,text,kind,source\n3,Stocks up,title+desc,a\n4,A chip,desc,b\n"
    (news / "train_subset.csv.gz").write_bytes(gzip.compress(text.encode()))
    assert AgNews(path=str(news), verify=False).load().name == "ag-news-subset"
    assert AgNews(path=str(news), kind="desc", verify=False).load().y.tolist() == [3, 3]
    for text, message in (
        ("3,Stocks up,title+desc\n", "must begin with a line label,text,kind"),
        ("label,text,kind\n3,Stocks up\n", "row 2: must begin with a class"),
    ):
        (news / "train_subset.csv.gz").write_bytes(gzip.compress(text.encode()))
        with pytest.raises(DataError, match=message):
            AgNews(path=str(news), verify=False).load()


@pytest.mark.parametrize(
    ("row", "message"),
    [('"5","a","b"', "has the label 5"), ("World,a,b", "row 1: must begin with a class"), ('"1"', "row 1")],
)
def test_mislabelled_news_are_refused(news, row, message):
    (news / "test.csv").write_text(row + "\n")
    with pytest.raises(DataError, match=message):
        AgNews(path=str(news), verify=False).load()


# -- characters ----------------------------------------------------------------------------------------------


def encrypted() -> bytes:
    """A zip whose only member is marked as encrypted."""
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as archive:
        archive.writestr("hamlet.xml", "<PLAY/>")
    held = bytearray(raw.getvalue())
    for mark, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        held[held.index(mark) + flags] |= 1
    return bytes(held)


ENCRYPTED = encrypted()


def test_leafs_alphabet_has_eighty_characters():
    assert len(ALPHABET) == len(set(ALPHABET)) == 80
    assert "".join(ALPHABET[at] for at in letters("“Ay,” quoth é — 5{\x00}")) == '"Ay," quoth e - 5  }'


@pytest.fixture
def plays(tmp_path: Path) -> Path:
    speech = "To be, or not to be, that is the question."
    roles = [{"client": "hamlet/Hamlet", "lines": [speech] * 3}, {"client": "hamlet/Ghost", "lines": ["Mark me."]}]
    (tmp_path / "shakedracor_by_role.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, roles)).encode()))
    with zipfile.ZipFile(tmp_path / "nltk_shakespeare.zip", "w") as archive:
        two = "<SPEECH><SPEAKER>A</SPEAKER><SPEAKER>B</SPEAKER><LINE>Both of us speak at once</LINE></SPEECH>"
        one = f"<SPEECH><SPEAKER>HAMLET</SPEAKER><LINE>{speech}</LINE><LINE>{speech}</LINE></SPEECH>"
        archive.writestr("shakespeare/hamlet.xml", f"<PLAY>{one}{two}{one}</PLAY>")
    (tmp_path / "tinyshakespeare_input.txt").write_text(f"First Citizen:\n{speech}\n\nAll:\n{speech}\n{speech}\n")
    return tmp_path


def test_windows_and_the_character_that_follows(plays):
    pool = Shakespeare(path=str(plays), window=10, stride=3, min_samples=5).load()
    text = "\n".join(["To be, or not to be, that is the question."] * 3)
    assert pool.x.shape == ((len(text) - 11) // 3 + 1, 10)
    for at in (0, 7):
        assert "".join(ALPHABET[t] for t in pool.x[at]) == text[3 * at : 3 * at + 10]
        assert ALPHABET[pool.y[at]] == text[3 * at + 10]
    assert set(pool.groups) == {"hamlet/Hamlet"}  # the ghost says too little
    assert (pool.classes, pool.vocabulary, pool.tokens) == (80, 80, True)


def test_targets_at_every_position_are_the_window_moved_by_one(plays):
    pool = Shakespeare(path=str(plays), window=10, stride=10, min_samples=5, every=True).load()
    assert pool.y.shape == pool.x.shape
    assert torch.equal(pool.x[:, 1:], pool.y[:, :-1])


@pytest.mark.parametrize(
    ("edition", "roles"),
    [("dracor", {"hamlet/Hamlet"}), ("nltk", {"hamlet/HAMLET"}), ("tiny", {"First Citizen", "All"})],
)
def test_every_edition_gives_roles(plays, edition, roles):
    pool = Shakespeare(path=str(plays), window=10, min_samples=20, edition=edition).load()
    assert set(pool.groups) == roles


def test_a_choice_of_roles_and_a_part_of_each(plays):
    def pool(**options):
        return Shakespeare(path=str(plays), window=10, min_samples=20, edition="tiny", **options).load()

    assert len(set(pool(roles=1).groups)) == 1
    assert np.unique(pool(per_role=6).groups, return_counts=True)[1].tolist() == [6, 6]
    with pytest.raises(DataError, match="roles=3 is more than the 2 with at least 20 samples"):
        pool(roles=3)
    with pytest.raises(DataError, match=r"no role in .* has 2000 samples; lower min_samples"):
        Shakespeare(path=str(plays), min_samples=2000).load()


def leaf(path: Path, data: dict[str, tuple[list, list]], **change: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    held = {
        "users": list(data),
        "num_samples": [len(y) for _, y in data.values()],
        "user_data": {user: {"x": x, "y": y} for user, (x, y) in data.items()},
    }
    path.write_text(json.dumps(held | change))


def test_leafs_shakespeare_comes_before_plays(plays):
    leaf(plays / "leaf" / "train" / "a.json", {"ROMEO": (["abc", "bcd"], ["d", "e"])})
    leaf(plays / "leaf" / "test" / "a.json", {"ROMEO": (["cde"], ["f"]), "NURSE": (["xyz"], ["!"])})
    pool = Shakespeare(path=str(plays), min_samples=1).load()
    assert ["".join(ALPHABET[t] for t in row) for row in pool.x] == ["cde", "abc", "bcd", "xyz"]
    assert pool.groups.tolist() == ["ROMEO"] * 3 + ["NURSE"]
    with pytest.raises(DataError, match="one target per window; choose every=false"):
        Shakespeare(path=str(plays), every=True).load()
    leaf(plays / "leaf" / "test" / "a.json", {"ROMEO": (["cdef"], ["f"])})
    with pytest.raises(DataError, match="windows of 'ROMEO' differ in length"):
        Shakespeare(path=str(plays), min_samples=1).load()


@pytest.mark.parametrize(
    ("file", "content", "edition"),
    [
        ("shakedracor_by_role.jsonl.gz", gzip.compress(b'{"client": "a"}', mtime=0), "dracor"),
        ("shakedracor_by_role.jsonl.gz", b"damaged", "dracor"),
        ("nltk_shakespeare.zip", b"damaged", "nltk"),
        ("nltk_shakespeare.zip", ENCRYPTED, "nltk"),
    ],
)
def test_damaged_plays_are_refused(plays, file, content, edition):
    (plays / file).write_bytes(content)
    with pytest.raises(DataError, match="cannot be read"):
        Shakespeare(path=str(plays), edition=edition).load()


# -- FEMNIST -------------------------------------------------------------------------------------------------


@pytest.fixture
def femnist(tmp_path: Path) -> Path:
    image = np.linspace(0, 1, 784).tolist()
    leaf(tmp_path / "femnist" / "train" / "a.json", {"f01": ([image] * 3, [0, 61, 5]), "f02": ([image], [7])})
    leaf(tmp_path / "femnist" / "test" / "b.json", {"f03": ([image], [1])})
    return tmp_path


def test_writers_are_clients(femnist):
    pool = Femnist(path=str(femnist)).load()
    order = np.argsort(pool.groups, kind="stable")
    assert pool.groups[order].tolist() == ["f01", "f01", "f01", "f02", "f03"]
    assert pool.y[order.copy()].tolist() == [0, 61, 5, 7, 1]
    assert (pool.x.shape, pool.classes) == ((5, 1, 28, 28), 62)
    assert len(set(Femnist(path=str(femnist), writers=2).load().groups)) == 2


@pytest.mark.parametrize(
    ("data", "change", "message"),
    [
        ({"f": ([[0.0] * 784], [62])}, {}, "has the label 62"),
        ({"f": ([[0.0] * 700], [1])}, {}, "images of writer 'f' are not 28 x 28"),
        ({"f": ([[0.0] * 784], [1, 2])}, {}, "user 'f' has 1 inputs, 2 targets"),
        ({"f": ([[0.0] * 784], [1])}, {"num_samples": [3]}, "num_samples 3"),
        ({"f": ([[0.0] * 784], [1])}, {"users": ["g"]}, "no LEAF file"),
        ({"f": ([[0.0] * 784], [1])}, {"user_data": None}, "no LEAF file"),
    ],
)
def test_files_that_are_no_leaf_files_are_refused(femnist, data, change, message):
    leaf(femnist / "femnist" / "train" / "a.json", data, **change)
    with pytest.raises(DataError, match=message):
        Femnist(path=str(femnist)).load()


def test_a_truncated_or_empty_folder_is_refused(femnist):
    path = femnist / "femnist" / "train" / "a.json"
    path.write_text(path.read_text()[:-20])
    with pytest.raises(DataError, match="cannot be read"):
        Femnist(path=str(femnist)).load()
    path.unlink()
    (femnist / "femnist" / "test" / "b.json").unlink()
    with pytest.raises(DataError, match="holds no LEAF files"):
        Femnist(path=str(femnist)).load()
