"""Silent corruption of numbers: bits that flip in a rank's memory, weights that become NaN.

From outside, in the memory of a rank that trains on the CPU: its script need not know. What is struck is found by what
it looks like (`memory`), so a flip may hit a moment of the optimizer as well as a weight. Tensors on a GPU cannot be
reached so. Numbers do not become right again: only a restart from a checkpoint undoes this.
"""

from __future__ import annotations

import argparse
import os
import random
import struct
import sys
import time
from typing import Literal

from holdfast.faults import process_memory
from holdfast.faults.fault import Fault, FaultOptions, FaultRefused, FaultScope, FaultStep
from holdfast.faults.helpers import READY, Helper
from holdfast.faults.requirements import Requirement
from holdfast.faults.target import FaultTarget, TargetProcess
from holdfast.symptoms import Symptom

_FLOAT = struct.Struct("<f")
_WORD = struct.Struct("<I")
_NAN = _FLOAT.pack(float("nan"))
NANS = 8


class Spoil(FaultStep, frozen=True, kw_only=True, tag="spoil"):
    """Some weights of the rank become NaN."""

    process: TargetProcess
    look_s: float

    @property
    def lasts(self) -> bool:
        return False

    def do(self) -> None:
        pages = _pages(self.process.pid, "weights", self.look_s)
        for page in random.sample(pages, min(NANS, len(pages))):
            process_memory.write(self.process.pid, page + 4 * random.randrange(process_memory.WORDS), _NAN)


class NanOptions(FaultOptions, frozen=True, kw_only=True):
    """`look_s`: time between two reads of the rank's memory; longer than one of its steps."""

    look_s: float = 0.5


class FlipOptions(FaultOptions, frozen=True, kw_only=True):
    """`where`: weights or gradients. `bit`: of 32; 30 is the highest of the exponent. `every_s`: on average, at random
    moments; 0 for one flip only. `look_s` as for nan.
    """

    where: Literal["weights", "gradients"] = "gradients"
    bit: int = 28
    every_s: float = 1.0
    look_s: float = 0.5


class Flip(FaultStep, frozen=True, kw_only=True, tag="flip"):
    process: TargetProcess
    where: str
    bit: int
    look_s: float

    @property
    def lasts(self) -> bool:
        return False

    def do(self) -> None:
        _flip(self.process.pid, random.choice(_pages(self.process.pid, self.where, self.look_s)), self.bit)


def _nan(aim: FaultTarget, options: NanOptions) -> tuple[FaultStep, ...]:
    assert aim.rank is not None
    return (Spoil(process=aim.rank.process, look_s=_checked_look(options.look_s)),)


def _bit_flip(aim: FaultTarget, options: FlipOptions) -> tuple[FaultStep, ...]:
    assert aim.rank is not None
    process = aim.rank.process
    look_s = _checked_look(options.look_s)
    if not 0 <= options.bit < 32:
        raise FaultRefused(f"bit={options.bit}: give 0 to 31; 23 to 30 are the exponent, 31 the sign")
    if not 0 <= options.every_s <= 86_400:
        raise FaultRefused(f"every_s={options.every_s:g}: give seconds up to a day, or 0 for one flip")
    if options.every_s == 0:
        return (Flip(process=process, where=options.where, bit=options.bit, look_s=look_s),)
    arguments = (
        *("--pid", str(process.pid), "--ticks", str(process.ticks), "--where", options.where),
        *("--bit", str(options.bit), "--every-s", str(options.every_s), "--look-s", str(look_s)),
    )
    return (Helper(mark=aim.mark, module="holdfast.faults.kinds.numbers", arguments=arguments),)


def _checked_look(look_s: float) -> float:
    if not 0 < look_s <= 600:
        raise FaultRefused(f"look_s={look_s:g}: give seconds, more than one step of the job takes, and up to 600")
    return look_s


def _pages(pid: int, where: str, look_s: float) -> list[int]:
    try:
        found = process_memory.tensors(pid, look_s)
    except ProcessLookupError as error:
        raise FaultRefused(f"process {pid} has ended: try again") from error
    pages = found.weights if where == "weights" else found.gradients
    if not pages:
        raise FaultRefused(
            f"found no {where} of float32 that change in the memory of process {pid}: it trains on a GPU or in another "
            f"precision, is too small (a page is {process_memory.WORDS} numbers), or makes no step in {look_s:g} s "
            "(-o look_s=...)"
        )
    return pages


def _flip(pid: int, page: int, bit: int) -> None:
    address = page + 4 * random.randrange(process_memory.WORDS)
    (word,) = _WORD.unpack(process_memory.read(pid, address, 4))
    process_memory.write(pid, address, _WORD.pack(word ^ 1 << bit))


def main() -> None:
    """Flip bits at random moments until killed, or until the rank has ended."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pid", type=int, required=True)
    parser.add_argument("--ticks", type=int, required=True)
    parser.add_argument("--where", required=True)
    parser.add_argument("--bit", type=int, required=True)
    parser.add_argument("--every-s", type=float, required=True)
    parser.add_argument("--look-s", type=float, required=True)
    args = parser.parse_args()
    process = TargetProcess(pid=args.pid, ticks=args.ticks)
    try:
        pages = _pages(process.pid, args.where, args.look_s)
    except (FaultRefused, OSError) as error:
        sys.exit(str(error))
    _flip(process.pid, random.choice(pages), args.bit)
    os.write(1, READY)
    while process.is_alive:
        time.sleep(random.expovariate(1 / args.every_s))
        try:
            _flip(process.pid, random.choice(pages), args.bit)
        except OSError:
            continue  # Freed by the rank, or the rank is gone.


FAULTS = (
    Fault(
        "nan",
        Symptom.NAN_VALUE,
        FaultScope.RANK,
        "some of the rank's weights become NaN, in its memory (float32 on the CPU)",
        _nan,
        needs=(Requirement.PTRACE,),
        options=NanOptions,
    ),
    Fault(
        "bit-flip",
        None,
        FaultScope.RANK,
        "single bits of the rank's gradients flip at random moments (float32 on the CPU): silent data corruption",
        _bit_flip,
        needs=(Requirement.PTRACE,),
        options=FlipOptions,
        undo="no more flip; what has flipped stays",
    ),
)

if __name__ == "__main__":
    main()
