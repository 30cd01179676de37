"""TensorBoard's and W&B's files as the real writers make them, cut anywhere, damaged anywhere."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast_agent.training_logs.crc32c import crc32c, masked_crc32c
from holdfast_agent.training_logs.protobuf import MalformedMessage, fields, signed
from holdfast_agent.training_logs.scalars import LogParser, Scalar
from holdfast_agent.training_logs.tfevents import DAMAGED_BYTES_MAX, TfEvents
from holdfast_agent.training_logs.wandb_file import BLOCK_BYTES, WandbFile

RECORDED = Path(__file__).parents[3] / "recorded"
TENSORBOARD = (RECORDED / "events.out.tfevents.recorded").read_bytes()
WANDB = (RECORDED / "run-recorded.wandb").read_bytes()
KINDS = pytest.mark.parametrize(
    ("parser", "recorded"), [(TfEvents, TENSORBOARD), (WandbFile, WANDB)], ids=["tensorboard", "wandb"]
)
Parser = Callable[..., LogParser]


def whole(parser: Parser, data: bytes) -> list[Scalar]:
    return parser().feed(data)


def of(scalars: list[Scalar], tag: str) -> dict[int, float]:
    return {scalar.step: scalar.value for scalar in scalars if scalar.tag == tag}


@pytest.mark.parametrize(
    ("parser", "recorded", "tag"), [(TfEvents, TENSORBOARD, "train/loss"), (WandbFile, WANDB, "train.loss")]
)
def test_what_the_real_writers_wrote_is_read(parser: Parser, recorded: bytes, tag: str) -> None:
    reader = parser()
    scalars = reader.feed(recorded)
    assert (reader.offset, reader.damaged, reader.has_given_up) == (len(recorded), 0, False)
    losses, norms = of(scalars, tag), of(scalars, "train/grad_norm")
    assert {step for step, loss in losses.items() if math.isnan(loss)} == {30}
    assert all(losses[step] == pytest.approx(4.0 / (step + 1)) for step in range(40) if step != 30)
    assert norms == {step: pytest.approx(1.0 + step / 10) for step in range(40)}
    moments = [scalar.at_s for scalar in scalars]
    assert moments == sorted(moments) and moments[0] > 1.7e9


def test_scalars_of_the_newer_style_are_tensors() -> None:
    scalars = whole(TfEvents, TENSORBOARD)
    assert of(scalars, "train/learning_rate")[7] == pytest.approx(1e-3)
    assert of(scalars, "mfu(%)")[7] == 41.5


def test_a_large_record_is_passed_over() -> None:
    assert of(whole(TfEvents, TENSORBOARD), "train/loss")[40] == 0.5


@KINDS
@settings(max_examples=25, deadline=None)
@given(cuts=st.lists(st.integers(0, 90_000), max_size=12))
def test_any_cut_of_the_bytes_gives_the_same_records(parser: Parser, recorded: bytes, cuts: list[int]) -> None:
    reader, found, at = parser(), list[Scalar](), 0
    for cut in [*sorted(min(cut, len(recorded)) for cut in cuts), len(recorded)]:
        found += reader.feed(recorded[at:cut])
        at = cut
    assert str(found) == str(whole(parser, recorded))
    assert reader.offset == len(recorded)


@KINDS
@settings(max_examples=25, deadline=None)
@given(cut=st.integers(0, 90_000))
def test_who_goes_on_at_the_offset_misses_none_and_repeats_none(parser: Parser, recorded: bytes, cut: int) -> None:
    reader = parser()
    before = reader.feed(recorded[:cut])
    after = parser(reader.offset).feed(recorded[reader.offset :])
    assert str(before + after) == str(whole(parser, recorded))


@KINDS
def test_a_record_that_is_not_whole_waits(parser: Parser, recorded: bytes) -> None:
    reader = parser()
    found = [len(reader.feed(recorded[at : at + 1])) for at in range(len(recorded))]
    assert sum(found) == len(whole(parser, recorded))
    assert reader.damaged == 0


@KINDS
@settings(max_examples=40, deadline=None)
@given(place=st.integers(200, 80_000), junk=st.binary(min_size=1, max_size=64))
def test_damage_costs_what_it_hits_and_invents_nothing(
    parser: Parser, recorded: bytes, place: int, junk: bytes
) -> None:
    data = bytearray(recorded)
    data[place : place + len(junk)] = junk
    found, good = whole(parser, bytes(data)), {str(scalar) for scalar in whole(parser, recorded)}
    assert {str(scalar) for scalar in found} <= good
    if parser is WandbFile:
        # A block is the most that is lost, and what reached into it.
        assert len(found) >= len(good) * (len(recorded) - 2 * BLOCK_BYTES) / len(recorded) / 2


def test_after_a_damaged_length_the_next_record_is_found() -> None:
    scalars = whole(TfEvents, TENSORBOARD)
    lost = bytearray(TENSORBOARD)
    (first,) = struct.unpack_from("<Q", lost)
    second = first + 16
    lost[second : second + 4] = b"\xff\xff\xff\xff"
    reader = TfEvents()
    found = reader.feed(bytes(lost))
    assert reader.damaged == 1 and not reader.has_given_up
    assert len(scalars) - len(found) <= 1


@KINDS
@settings(max_examples=100, deadline=None)
@given(data=st.binary(max_size=4_000), keeps_head=st.booleans())
def test_hostile_bytes_raise_nothing_and_come_to_an_end(
    parser: Parser, recorded: bytes, data: bytes, keeps_head: bool
) -> None:
    reader = parser()
    for piece in (recorded[:7] if keeps_head else b"", data, bytes(40_000), data):
        reader.feed(piece)
    assert 0 <= reader.offset <= 7 + 2 * len(data) + 40_000


def test_a_file_of_rubbish_is_given_up() -> None:
    rubbish = bytes(range(256)) * (DAMAGED_BYTES_MAX // 256 + 8)
    for parser in (TfEvents(), WandbFile()):
        assert parser.feed(rubbish) == [] and parser.has_given_up
        assert parser.feed(TENSORBOARD) == []


@settings(max_examples=50, deadline=None)
@given(message=st.binary(max_size=300))
def test_sealed_rubbish_is_no_message(message: bytes) -> None:
    length = struct.pack("<Q", len(message))
    record = length + struct.pack("<I", masked_crc32c(length)) + message + struct.pack("<I", masked_crc32c(message))
    events = TfEvents()
    events.feed(record)
    assert events.offset == len(record)
    head = b":W&B\xe1\xbe\x00"
    part = struct.pack("<IHB", zlib.crc32(b"\x01" + message), len(message), 1) + message
    run = WandbFile()
    run.feed(head + part)
    assert run.offset == len(head + part)


def test_the_checksum_is_castagnolis() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (b"", []),
        (b"\x08\x96\x01", [(1, 150)]),
        (b"\x12\x03abc\x1d\x00\x00\x80\x3f", [(2, b"abc"), (3, b"\x00\x00\x80\x3f")]),
        (b"\x09" + bytes(8), [(1, bytes(8))]),
    ],
)
def test_fields_of_a_message(message: bytes, expected: list[tuple[int, object]]) -> None:
    assert list(fields(message)) == expected


@pytest.mark.parametrize("message", [b"\x08", b"\x12\x05abc", b"\x0b", b"\x00\x01", b"\x08" + b"\xff" * 11, b"\x09abc"])
def test_what_is_no_message_is_refused(message: bytes) -> None:
    with pytest.raises(MalformedMessage):
        list(fields(message))


def test_numbers_below_zero_take_ten_bytes() -> None:
    ((_, value),) = fields(b"\x08" + b"\xff" * 9 + b"\x01")
    assert isinstance(value, int) and signed(value) == -1
