"""Which part of a tensor is where: what is held and what is not make up the whole, and nothing twice."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.checkpoint.metadata import MetadataIndex, TensorStorageMetadata
from torch.distributed.checkpoint.planner import WriteItem, WriteItemType

from holdfast.trainer.dcp import dcp_layout
from holdfast.trainer.dcp.dcp_layout import Box, DcpChunk, DcpLayout, rest_of


@st.composite
def tensors(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Box]]:
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=3)))

    def box() -> Box:
        offsets = tuple(draw(st.integers(0, size)) for size in shape)
        return Box(offsets, tuple(draw(st.integers(0, size - at)) for size, at in zip(shape, offsets, strict=True)))

    return shape, [box() for _ in range(draw(st.integers(0, 3)))]


def cells(box: Box) -> list[tuple[int, ...]]:
    return list(product(*(range(at, at + size) for at, size in zip(box.offsets, box.sizes, strict=True))))


@given(tensors())
def test_the_rest_is_all_that_the_boxes_are_not(tensor: tuple[tuple[int, ...], list[Box]]) -> None:
    shape, boxes = tensor
    held = {cell for box in boxes for cell in cells(box)}
    rest = [cell for box in rest_of(shape, boxes) for cell in cells(box)]
    assert len(rest) == len(set(rest))
    assert not held.intersection(rest)
    assert held.union(rest) == set(cells(Box((0,) * len(shape), shape)))


def test_the_metadata_names_what_other_ranks_have_too() -> None:
    chunk = DcpChunk("weight", "bfloat16", (10, 4), Box((3, 0), (3, 4)))
    empty = DcpChunk("short", "float32", (2, 4), Box((2, 0), (0, 4)))
    metadata = DcpLayout((chunk, empty), ("epoch",), {"weight": ("model", "weight")}).metadata()
    weight, short = metadata.state_dict_metadata["weight"], metadata.state_dict_metadata["short"]
    assert isinstance(weight, TensorStorageMetadata) and isinstance(short, TensorStorageMetadata)
    places = [(tuple(it.offsets), tuple(it.sizes)) for it in weight.chunks]
    assert places == [((3, 0), (3, 4)), ((0, 0), (3, 4)), ((6, 0), (4, 4))]
    assert [tuple(it.sizes) for it in short.chunks] == [(2, 4)]
    assert metadata.planner_data == {"weight": ("model", "weight")}


def test_what_a_planner_says_of_its_own_is_left_out() -> None:
    item = WriteItem(MetadataIndex("epoch"), WriteItemType.BYTE_IO)
    assert dcp_layout.decode(dcp_layout.encode([], [item], object())) == DcpLayout((), ("epoch",), {})
    paths = {"a.0": ("a", 0)}
    assert dcp_layout.decode(dcp_layout.encode([], [item], paths)).paths == paths
