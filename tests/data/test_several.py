"""Several inputs, and sequences of different length, lie side by side in rows; whoever gives them gets them back."""

import pytest
import torch
from torch.utils.data import Dataset

from idiolect import Federation
from idiolect.core.errors import DataError
from idiolect.core.layout import InputLayout, Leaf, Padded, find_layout, is_nested, read_layout
from idiolect.data import load

IMAGE, TABLE = torch.arange(24.0).reshape(6, 1, 2, 2), torch.arange(6)
WORDS = [torch.arange(1, 2 + at % 3) for at in range(6)]
Y = torch.tensor([0, 1] * 3)


def test_inputs_come_back_as_they_were_given():
    nested = {"image": IMAGE, "rest": (TABLE, {"mask": TABLE > 2})}
    layout = find_layout(nested)
    rows = layout.pack(nested)
    back = layout.unpack(rows)
    assert rows.shape == (6, 6)
    assert torch.equal(back["image"], IMAGE)
    assert torch.equal(back["rest"][0], TABLE)
    assert torch.equal(back["rest"][1]["mask"], TABLE > 2)
    assert str(layout) == "image [1, 2, 2] float32, rest.0 [] int64, rest.1.mask [] bool"
    assert read_layout(layout.as_plain()) == layout


def test_sequences_are_filled_up_and_know_their_lengths():
    layout = find_layout(WORDS)
    back = layout.unpack(layout.pack(WORDS))
    assert layout == InputLayout(Leaf((3,), "int64", sequence=True))
    assert back.lengths.tolist() == [1, 2, 3, 1, 2, 3]
    assert back.values[1].tolist() == [1, 2, 0]
    assert back.mask[1].tolist() == [True, True, False]
    assert torch.equal(layout.pack(back), layout.pack(WORDS))
    assert torch.equal(layout.pack(Padded(back.values, back.lengths)), layout.pack(WORDS))


def test_clients_share_the_length_of_the_longest():
    data = load({"a": (WORDS, Y), "b": (torch.ones(2, 5, dtype=torch.long), Y[:2])}, inputs="tokens")
    assert data.input_shape == (5,)
    assert data["a"].x.shape[1] == data["b"].x.shape[1] == 6
    assert data.vocabulary == 4
    assert data.tokens


class Pairs(Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, at):
        return {"image": IMAGE[at], "words": WORDS[at]}, int(Y[at])


def test_datasets_may_give_several_inputs():
    arrays = Federation.from_clients([({"image": IMAGE, "words": WORDS}, Y)])
    assert Federation.from_clients([Pairs()]).fingerprint == arrays.fingerprint


def test_pools_and_public_samples_may_have_several_inputs():
    data = load(({"a": IMAGE, "b": TABLE}, Y), partition="iid", clients=2, public=({"a": IMAGE, "b": TABLE}, Y))
    assert data.input_shape == {"a": (1, 2, 2), "b": ()}
    assert torch.equal(data.public[0], data.clients[0].x)


def test_splits_of_a_client_may_have_several_inputs():
    data = load({"a": {"train": ((IMAGE, TABLE), Y), "test": ((IMAGE, TABLE), Y)}})
    assert (len(data["a"].train), len(data["a"].test)) == (4, 6)


def test_an_array_is_no_sequence_and_rows_in_a_tuple_are_no_inputs():
    assert not is_nested([[1.0, 2.0], [3.0, 4.0]])
    assert not is_nested((torch.ones(3), torch.ones(3)), samples=2)
    assert load([([[1.0, 2.0], [3.0, 4.0]], [0, 1])]).layout is None


@pytest.mark.parametrize(
    ("clients", "message"),
    [
        ({"a": ({"i": IMAGE}, Y), "b": ({"j": IMAGE}, Y)}, "client 'b' has the inputs j .* but client 'a' has i"),
        (
            {"a": ({"i": IMAGE}, Y), "b": ({"i": IMAGE[:, :, :1]}, Y)},
            r"i \[1, 1, 2\] float32, but client 'a' has i \[1, 2",
        ),
        ({"a": ({"i": IMAGE, "t": TABLE[:5]}, Y)}, "its inputs have 6, 5 samples; give as many of each"),
        ({"a": ({}, Y)}, "there are no inputs"),
        ({"a": ([*WORDS[:5], torch.zeros(0).long()], Y)}, "hold an empty one; leave its sample out"),
        ({"a": ([torch.ones(1, 2), torch.ones(2, 3)], Y[:2])}, "differ in more than their length"),
        ({"a": ({"t": TABLE + 2**25, "i": IMAGE}, Y)}, "whole numbers beyond 16,777,216"),
        ({"a": ({"t": ["x"] * 6}, Y)}, "client 'a': client|no numbers of one shape"),
    ],
)
def test_inputs_that_do_not_fit_are_refused_with_the_client(clients, message):
    with pytest.raises(DataError, match=message):
        load(clients)


def test_a_feature_shift_does_not_fit_several_inputs():
    with pytest.raises(DataError, match="which no feature shift fits"):
        load(({"a": IMAGE, "b": TABLE}, Y), partition="feature:noise", clients=2)


@pytest.mark.parametrize(
    "plain", [None, {}, {"leaf": [[-1], "float32", False]}, {"dict": []}, {"leaf": [[2], "object", False]}]
)
def test_impossible_layouts_are_refused(plain):
    with pytest.raises(ValueError, match="impossible"):
        read_layout(plain)
