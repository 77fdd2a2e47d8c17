"""Messages survive the wire; what is no message is refused."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from idiolect.core import codec
from idiolect.core.errors import InputError

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3, 4)])
def test_dense_leaves_survive(dtype, shape):
    leaf = torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(0))
    slots = {"params": {"a": leaf.to(dtype)}, "empty": {}}
    again, masks = codec.decode(codec.encode(slots))
    assert torch.equal(again["params"]["a"], slots["params"]["a"])
    assert again["params"]["a"].dtype == dtype
    assert again["empty"] == {}
    assert masks == {}


@given(st.integers(1, 200), st.floats(0, 1), st.sampled_from(DTYPES))
def test_masked_leaves_survive_and_bytes_are_counted(size, share, dtype):
    draw = torch.Generator().manual_seed(size)
    leaf = torch.randint(0, 2, (size,), generator=draw).to(dtype)
    mask = torch.rand(size, generator=draw) < share
    slots, masks = {"params": {"a": leaf}}, {"params": {"a": mask}}
    data = codec.encode(slots, masks)
    again, mask_again = codec.decode(data)
    assert torch.equal(again["params"]["a"], torch.where(mask, leaf, torch.zeros_like(leaf)))
    assert torch.equal(mask_again["params"]["a"], mask)
    assert codec.payload(data) == codec.size(slots, masks)


def test_few_of_many_go_as_indices_and_many_as_bits():
    leaf, mask = torch.ones(1000), torch.zeros(1000, dtype=torch.bool)
    mask[:3] = True
    assert codec.size({"p": {"a": leaf}}, {"p": {"a": mask}}) == 3 * (4 + 4)
    mask[:500] = True
    assert codec.size({"p": {"a": leaf}}, {"p": {"a": mask}}) == 125 + 500 * 4
    assert codec.size({"p": {"a": leaf}}, {"p": {"a": torch.ones(1000, dtype=torch.bool)}}) == 4000


def test_booleans_cost_a_bit_each():
    assert codec.size({"p": {"a": torch.ones(16, dtype=torch.bool)}}) == 2


@given(st.binary(max_size=200))
def test_garbage_is_refused(data):
    with pytest.raises(InputError, match="not a message"):
        codec.decode(data)


@given(st.integers(0, 10_000), st.integers(0, 255))
def test_damaged_messages_are_refused_or_still_messages(position, value):
    data = bytearray(codec.encode({"params": {"a": torch.arange(9.0)}}, {"params": {"a": torch.arange(9) < 4}}))
    data[position % len(data)] = value
    try:
        slots, _ = codec.decode(bytes(data))
    except InputError:
        return
    assert all(isinstance(leaf, torch.Tensor) for leaves in slots.values() for leaf in leaves.values())


def test_a_message_that_is_cut_short_or_too_long_is_refused():
    data = codec.encode({"params": {"a": torch.arange(9.0)}})
    for wrong in (data[:-1], data + b"x", data[:10], b""):
        with pytest.raises(InputError):
            codec.decode(wrong)


def test_an_impossible_shape_allocates_nothing():
    data = codec.encode({"p": {"a": torch.zeros(2)}}).replace(b"[2]", b"[2000000000]", 1)
    length = int.from_bytes(data[4:12], "little") + 9
    with pytest.raises(InputError):
        codec.decode(data[:4] + length.to_bytes(8, "little") + data[12:])


def rewrite_header(data, change):
    """The message with another header; the numbers stay."""
    length = int.from_bytes(data[4:12], "little")
    header = json.loads(data[12 : 12 + length])
    change(header)
    text = json.dumps(header).encode()
    return data[:4] + len(text).to_bytes(8, "little") + text + data[12 + length :]


SPARSE = codec.encode({"p": {"a": torch.arange(1000.0)}}, {"p": {"a": torch.arange(1000) < 3}})


def test_the_header_is_read_without_memory_for_what_it_announces():
    data = rewrite_header(SPARSE, lambda header: header["leaves"][0].__setitem__(3, [2**30]))
    assert len(data) < 150
    (leaf,) = codec.read_header(data)[1]
    assert (leaf.shape, leaf.partial) == ((2**30,), True)


@pytest.mark.parametrize("indices", [(-1, 1, 2), (2, 1, 3), (1, 1, 2), (0, 1, 1000), (0, 2**31 - 1, 5)])
def test_indices_that_are_negative_repeated_unordered_or_outside_are_refused(indices):
    numbers = torch.tensor(indices, dtype=torch.int32).numpy().tobytes()
    with pytest.raises(InputError, match="indices must grow and lie within the leaf"):
        codec.decode(SPARSE[:-24] + numbers + SPARSE[-12:])


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header["leaves"].append([*header["leaves"][0][:5], 0]),
        lambda header: header["leaves"][0].__setitem__(0, "diary"),
        lambda header: header["leaves"][0].__setitem__(1, 5),
        lambda header: header["leaves"][0].__setitem__(2, "complex64"),
        lambda header: header["leaves"][0].__setitem__(2, "bool"),
        lambda header: header["leaves"][0].__setitem__(3, ["1000"]),
        lambda header: header["leaves"][0].__setitem__(3, [-1000, -1]),
        lambda header: header["leaves"][0].__setitem__(3, [True, 1000]),
        lambda header: header["leaves"][0].__setitem__(4, "pickle"),
        lambda header: header["leaves"][0].__setitem__(5, 1.5),
        lambda header: header.__setitem__("slots", "p"),
        lambda header: header.__setitem__("leaves", 5),
    ],
)
def test_a_header_that_contradicts_itself_is_refused(change):
    with pytest.raises(InputError, match="not a message of slots"):
        codec.decode(rewrite_header(SPARSE, change))
