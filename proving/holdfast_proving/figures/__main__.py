"""The page docs/papers.md: `python -m holdfast_proving.figures > docs/papers.md`. It takes minutes of a core."""

from __future__ import annotations

import argparse
import logging
import sys
from collections.abc import Callable, Iterator

import structlog

from holdfast_proving.figures import formulas, histories, pool
from holdfast_proving.figures.row import Figure, Row

HEAD = """# The papers' figures, by this code

Each table has a paper's number beside ours, made by one command:

    python -m holdfast_proving.figures > docs/papers.md

*Made by*: **production**, a decision's own code, asked directly; **simulation**, production code in the simulated world
([simulate](simulate.md)); **formula**, arithmetic with measured or published numbers, in which no code of the product
takes part. Differences are explained below each table.
"""

NOT_HERE = """
## What is not here

Figures that need GPUs or a large network: FT-HSDP's Table 2 and Fig. 2, GREYHOUND's Fig. 14 to 19, ByteRobust's
Fig. 11. FT-HSDP's Fig. 6, 8 and 9 need training that goes on without a replica, which Holdfast does not have. Measured
elsewhere: ByteRobust's Table 6 ([drills](drills.md)) and 7, GREYHOUND's Tables 3 and 4, TRANSOM's Fig. 8 and 9
([benchmarks](benchmarks.md)). ByteRobust's Tables 1 and 4, FT-HSDP's Table 1, TRANSOM's Table I and Llama 3's
interruptions are [scenarios](simulate.md).
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="holdfast_proving.figures", description=__doc__)
    parser.add_argument("--days", type=float, help="days of ByteRobust's jobs in Fig. 10, in place of 90 and 30")
    asked = parser.parse_args()
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    makers: tuple[Callable[[], Figure], ...] = (
        lambda: histories.figure_10(asked.days),
        pool.figure_12,
        pool.table_5,
        formulas.table_8,
        formulas.ft_hsdp,
        histories.greyhound,
        histories.transom,
    )
    print(HEAD)
    for make in makers:
        figure = make()
        print(figure.title, file=sys.stderr)
        print("\n".join(written(figure)))
    print(NOT_HERE.strip())


def written(figure: Figure) -> Iterator[str]:
    """Return the figure's section of the page."""
    yield f"## {figure.title}\n"
    yield "| | ours | paper | difference | made by |\n|---|---|---|---|---|"
    yield from map(_row, figure.rows)
    yield ""
    yield from _wrapped(f"*Inputs.* {figure.inputs}")
    yield ""
    yield from _wrapped(f"*Differences.* {figure.why}")
    yield ""


def _row(row: Row) -> str:
    ours = f"{row.ours:.{row.digits}f} {row.unit}".strip()
    if row.paper is None:
        return f"| {row.what} | {ours} | - | - | {row.made} |"
    paper = f"{row.paper:.{row.digits}f} {row.unit}".strip()
    return f"| {row.what} | {ours} | {paper} | {row.ours - row.paper:+.{row.digits}f} | {row.made} |"


def _wrapped(text: str) -> Iterator[str]:
    line = ""
    for word in text.split():
        if len(line) + len(word) >= 120:
            yield line
            line = word
        else:
            line = f"{line} {word}" if line else word
    yield line


if __name__ == "__main__":
    main()
