"""Pickles are read as data, whatever they try."""

import os
import pickle
import pickletools
import random

import pytest

from holdfast.engines.hang.dumps import safe_pickle
from holdfast.engines.hang.dumps.safe_pickle import UnsafePickleError

PLAIN = {
    "numbers": [0, 1, 255, 256, 65535, 65536, -5, 2**40, -(2**70), 1.5, True, False, None],
    "texts": ["", "é", "x" * 300, "\ud800"],
    "tuples": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)],
    "nested": {"a": [{}, [[]], {1: "one"}]},
}


@pytest.mark.parametrize("protocol", range(6))
def test_plain_data_is_read_as_pickle_reads_it(protocol: int) -> None:
    assert safe_pickle.loads(pickle.dumps(PLAIN, protocol)) == PLAIN


def test_bytes_are_read() -> None:
    assert safe_pickle.loads(pickle.dumps([b"ab", b"x" * 300], 4)) == [b"ab", b"x" * 300]


class _Runs:
    def __init__(self, action: object) -> None:
        self.action = action

    def __reduce__(self) -> object:
        return self.action


@pytest.mark.parametrize("protocol", range(6))
def test_code_is_refused_by_name_and_not_run(protocol: int, tmp_path: object) -> None:
    marker = f"{tmp_path}/was_run"
    with pytest.raises(UnsafePickleError, match=r"opcode (GLOBAL|STACK_GLOBAL|INST), which plain data does not need"):
        safe_pickle.loads(pickle.dumps({"entries": [_Runs((os.mkdir, (marker,)))]}, protocol))
    assert not os.path.exists(marker)


def test_every_opcode_that_can_run_code_is_unknown() -> None:
    acts = {"GLOBAL", "STACK_GLOBAL", "INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "REDUCE", "BUILD", "PERSID", "BINPERSID"}
    acts |= {"EXT1", "EXT2", "EXT4", "NEXT_BUFFER", "READONLY_BUFFER"}
    codes = {opcode.name: opcode.code.encode("latin-1") for opcode in pickletools.opcodes}
    for name in acts:
        with pytest.raises(UnsafePickleError, match=f"opcode {name},"):
            safe_pickle.loads(b"]" + codes[name] + b"\x00" * 16)


def test_few_bytes_cannot_describe_much() -> None:
    value: list[object] = []
    for _ in range(80):
        value = [value, value]
    with pytest.raises(UnsafePickleError, match="more than 20,000,000 values"):
        safe_pickle.loads(pickle.dumps(value))


def test_a_memo_index_is_no_size() -> None:
    assert safe_pickle.loads(b"\x80\x02]r\xff\xff\xff\xff.") == []


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\x80\x02]q\x00h\x00a.", "contains itself"),
        (b"]" * 200 + b"a" * 199 + b".", "deep"),
        (b"}(K\x01K\x02\x86K\x03u.", "tuple as key"),
        (b"\x80\x02X\xff\xff\xff\x7fabc.", "cut off"),
        (b"\x8b\xff\xff\xff\x7f", "integer of"),
        (b"L" + b"9" * 100 + b"L\n.", "digits"),
        (b"", "broken at byte 0"),
        (b"Na.", "broken"),
        (b"NNa.", "no list"),
        (b"NNNs.", "no dict"),
        (b"h\x07.", "broken"),
        (b"e.", "mark is missing"),
        (b"NN.", "2 values instead of one"),
        (b"\xff", "no opcode"),
    ],
)
def test_what_is_broken_says_where(data: bytes, says: str) -> None:
    with pytest.raises(UnsafePickleError, match=says):
        safe_pickle.loads(data)


def test_damage_anywhere_is_an_error_or_plain_data() -> None:
    whole = pickle.dumps(PLAIN, 2)
    chance = random.Random(7)
    refused = 0
    for _ in range(3000):
        damaged = bytearray(whole)
        damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        try:
            safe_pickle.loads(bytes(damaged[: chance.randrange(1, len(damaged) + 1)]))
        except UnsafePickleError:
            refused += 1
    assert refused > 1000
