"""What stacks blame, trace by trace (tests/golden/stacks/*.trace).

> 0 job mesh=dp=4,pp=4,tp=2 ranks_per_node=2   # outermost dimension first
> 0 stand where=dp=3,pp=2 at=isend             # every rank with these coordinates; the later line counts
> 0 judge
"""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.engines.hang.stacks.stack_groups import StackVerdict, judge_stacks
from holdfast.engines.wording import in_ranges
from holdfast.topology import Mesh
from tests.golden.trace import Input, play
from tests.scenes import stacks as scenes
from tests.scenes.stacks import Calls, process

TRACES = sorted((Path(__file__).parent / "stacks").glob("*.trace"))


@pytest.mark.parametrize("path", TRACES, ids=lambda path: path.stem)
def test_trace(path: Path, request: pytest.FixtureRequest) -> None:
    play(path, _Scene().step, bool(request.config.getoption("--rewrite")))


class _Scene:
    def __init__(self) -> None:
        self._mesh = Mesh(("dp",), (1,))
        self._ranks_per_node = 1
        self._calls: dict[int, Calls] = {}

    def step(self, given: Input) -> list[str]:
        if given.kind == "job":
            self._mesh = Mesh.parse(given.fields["mesh"])
            self._ranks_per_node = int(given.fields["ranks_per_node"])
        elif given.kind == "stand":
            for rank in self._at(given.fields.get("where", "")):
                self._calls[rank] = getattr(scenes, given.fields["at"].upper())
        else:
            stacks = [process(rank, calls) for rank, calls in sorted(self._calls.items())]
            return _said(judge_stacks(stacks, self._mesh, self._ranks_per_node))
        return []

    def _at(self, where: str) -> list[int]:
        wanted = {dim: int(index) for dim, _, index in (one.partition("=") for one in where.split(",") if one)}
        return [rank for rank in range(self._mesh.world_size) if wanted.items() <= self._mesh.coordinates(rank).items()]


def _said(verdict: StackVerdict) -> list[str]:
    lines = [
        f"= {'healthy' if group.is_healthy else 'outlier'} {group.stack[0].split()[0]}: ranks {in_ranges(group.ranks)}"
        for group in verdict.groups
    ]
    lines += [f"= shared {'-'.join(one.dims)}: machines {', '.join(one.nodes)}" for one in verdict.shared]
    for one in verdict.blamed:
        lines.append(f"< blamed machines {', '.join(one.nodes)} ({one.confidence:.2f}): {one.reason}")
        lines += [f"<     {line}" for line in one.evidence]
    return [*lines, *(f"< note: {note}" for note in verdict.notes)]
