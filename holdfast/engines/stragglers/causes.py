"""Descriptions of the causes of a job's slowness, each with evidence. Pure."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from holdfast.engines.stragglers.straggler_verdict import Cause, SlowWorker
from holdfast.engines.stragglers.traces.operations import Floats, Operations
from holdfast.engines.stragglers.what_if.counterfactual import PAUSE_KIND, AnalyzedStep

_UNEQUAL = 1.03
_STALLS_MIN = 5
_MOSTLY = 0.8
_WORKERS_MIN = 4
"""Minimum number of workers: among fewer, one has most pauses by chance."""


class CauseDescriber:
    def __init__(self, operations: Operations, step: AnalyzedStep, correlation: float) -> None:
        self._step = step
        self._correlation = correlation
        self._rank = {
            (dp_rank, stage): rank
            for dp_rank, stage, rank in zip(
                operations.dp_rank.tolist(), operations.stage.tolist(), operations.rank.tolist(), strict=True
            )
        }
        self._ranks_per_worker = operations.ranks_per_worker

    def cause(self, kind: str, share: float, saved_s: float) -> Cause | None:
        """Return the cause of a kind; None without evidence."""
        describe: dict[str, Callable[[float, float], Cause | None]] = {
            "machine": self._machine,
            "link": self._link,
            "communication": self._communication,
            "stage_imbalance": self._stages,
            "sequence_length_imbalance": self._lengths,
            "pauses": self._pauses,
        }
        return describe[kind](share, saved_s) if kind in describe else None

    def worker(self, dp_rank: int, stage: int, times: float = 1.0) -> SlowWorker:
        """Return a worker with its global ranks."""
        first = self._rank.get((dp_rank, stage), -1)
        ranks = tuple(range(first, first + self._ranks_per_worker)) if first >= 0 else ()
        return SlowWorker(dp_rank=dp_rank, stage=stage, ranks=ranks, times=round(times, 3))

    def _machine(self, share: float, saved_s: float) -> Cause | None:
        spans = sorted(self._step.parts.spans, key=lambda span: -span.times)
        if not spans:
            return None
        steps = self._step.shape.steps
        times: dict[tuple[int, int], float] = {}
        evidence = []
        for span in spans:
            times.setdefault((span.dp_rank, span.stage), span.times)
            when = f"in all {len(steps)} steps"
            if not span.is_throughout:
                when = f"in steps {steps[span.first]} to {steps[span.last]} of {steps[0]} to {steps[-1]}"
            peers = self._peers_s(span.stage, span.dp_rank, span.first, span.last)
            evidence.append(
                f"{named(self.worker(span.dp_rank, span.stage))}: forward {peers[0]}, backward {peers[1]}, {when}"
            )
        workers = tuple(self.worker(*worker, one) for worker, one in times.items())
        throughout = all(span.is_throughout for span in spans)
        return Cause(
            kind="machine",
            share=share,
            saved_s=saved_s,
            words=f"{'; '.join(f'{named(one)} takes {one.times:.2f} times what its peers take' for one in workers[:4])}"
            + (f"; {len(workers) - 4} more" if len(workers) > 4 else ""),
            workers=workers,
            stages=tuple(sorted({one.stage for one in workers})),
            first_step=None if throughout else int(steps[min(span.first for span in spans)]),
            last_step=None if throughout else int(steps[max(span.last for span in spans)]),
            evidence=tuple(evidence),
        )

    def _peers_s(self, stage: int, dp_rank: int, first: int, last: int) -> tuple[str, str]:
        passes = self._step.passes
        texts = []
        for kind in (0, 1):
            found = passes.duration_s[(passes.kind == kind) & (passes.stage == stage), :, first : last + 1]
            if not found.size:
                texts.append("not recorded")
                continue
            own_s = float(np.median(found[:, dp_rank]))
            others_s = float(np.median(np.delete(found, dp_rank, axis=1))) if found.shape[1] > 1 else float("nan")
            texts.append(f"{own_s:.4g} s beside {others_s:.4g} s")
        return texts[0], texts[1]

    def _link(self, share: float, saved_s: float) -> Cause | None:
        links = sorted(self._step.links, key=lambda link: -link.times)
        if not links:
            return None
        pp_size = self._step.shape.pp_size
        at = sorted({worker for link in links for worker in link.workers})
        common = set(links[0].workers).intersection(*(link.workers for link in links))
        lines = []
        for link in links:
            ends = [self.worker(*divmod(worker, pp_size)) for worker in link.workers]
            between = " - ".join(named(one) for one in ends[:3]) + (f" and {len(ends) - 3} more" if ends[3:] else "")
            lines.append(
                f"{between}: {', '.join(link.kinds)} takes {link.times:.1f} times the usual {link.usual_s:.4g} s"
            )
        whose = (
            f"all of them at {named(self.worker(*divmod(common.pop(), pp_size)))}" if len(links) > 1 and common else ""
        )
        return Cause(
            kind="link",
            share=share,
            saved_s=saved_s,
            words=f"transfers {lines[0]}"
            + (f"; {len(links)} links are slow" if len(links) > 1 else "")
            + (f", {whose}" if whose else ""),
            workers=tuple(self.worker(*divmod(worker, pp_size)) for worker in at),
            stages=tuple(sorted({worker % pp_size for worker in at})),
            evidence=tuple(lines),
        )

    def _communication(self, share: float, saved_s: float) -> Cause | None:
        return Cause(
            kind="communication",
            share=share,
            saved_s=saved_s,
            words="transfers between workers are slow intermittently, on no particular link",
        )

    def _stages(self, share: float, saved_s: float) -> Cause | None:
        passes, parts = self._step.passes, self._step.parts
        usual_s = parts.usual_s.reshape(-1)
        stages = np.unique(passes.stage)
        total_s = np.array([usual_s[passes.stage == stage].sum() for stage in stages])
        times = total_s / total_s.mean()
        heavy = [int(stage) for stage in stages[times > _UNEQUAL]]
        if not heavy:
            return None
        last = self._step.shape.pp_size - 1
        most = int(stages[np.argmax(times)])
        which = f"stage {most}" + (", the last" if most == last else ", the first" if most == 0 else "")
        lines = [
            f"stage {stage}: "
            + ", ".join(
                f"{name} {usual_s[(passes.stage == stage) & (passes.kind == kind)].sum():.4g} s"
                for kind, name in enumerate(("forward", "backward"))
            )
            + f" for a microbatch, {one:.2f} times the mean"
            for stage, one in zip(stages.tolist(), times.tolist(), strict=True)
        ]
        words = f"{which}, takes {times.max():.2f} times the mean of all stages on every data-parallel rank: "
        words += "layers are divided unequally" + (" (the loss and the output layer count too)" if most == last else "")
        if self._step.shape.dp_size == 1:
            words = (
                f"{which}, takes {times.max():.2f} times the mean of all stages; with one data-parallel rank it has no "
                "peer that would distinguish a slow machine from unequal stages"
            )
        return Cause(
            kind="stage_imbalance",
            share=share,
            saved_s=saved_s,
            words=words,
            stages=tuple(heavy),
            evidence=tuple(lines),
        )

    def _lengths(self, share: float, saved_s: float) -> Cause | None:
        content = self._step.parts.content
        per_rank = np.median(content, axis=0).mean(axis=2)
        slowest = per_rank.argmax(axis=0)
        spread = np.quantile(content, [0.05, 0.95])
        changes = int((np.diff(slowest) != 0).sum())
        always = np.bincount(slowest, minlength=len(per_rank)).max() == len(slowest) >= 3 and len(per_rank) > 1
        moves = f"the slowest data-parallel rank changed {changes} times in {len(slowest)} steps"
        words = (
            "microbatches take unequally long, on all stages alike and forward as backward: "
            "their sequences differ in length"
        )
        if always:
            moves = f"data-parallel rank {int(slowest[0])} is always the slowest, on all its stages"
            words = (
                f"data-parallel rank {int(slowest[0])} takes longer on all its stages alike, always: "
                "more work in its data, or something that its stages share"
            )
        return Cause(
            kind="sequence_length_imbalance",
            share=share,
            saved_s=saved_s,
            words=words,
            evidence=(
                f"forward and backward passes of a microbatch: correlation {self._correlation:.2f}",
                f"a microbatch takes from {spread[0]:.2f} to {spread[1]:.2f} times the mean (5th to 95th percentile)",
                moves,
            ),
        )

    def _pauses(self, share: float, saved_s: float) -> Cause | None:
        passes, parts, shape = self._step.passes, self._step.parts, self._step.shape
        places = np.argwhere(parts.is_pause)
        lost_s = (passes.duration_s * (1 - 1 / parts.rest))[parts.is_pause]
        gc = shape.of_kind(PAUSE_KIND)
        if not len(places) and not gc.any():
            return None
        forward = float((passes.kind[places[:, 0]] == 0).mean()) if len(places) else 0.0
        workers = {(int(one[1]), int(passes.stage[one[0]])) for one in places}
        lines = []
        if stalled := self._stalling(places, lost_s):
            return self._stall(stalled, places, lost_s, share, saved_s)
        if len(places):
            lines.append(
                f"{len(places)} passes paused for {lost_s.mean():.3g} s beyond their usual time, "
                f"{forward:.0%} of them forward, on {len(workers)} of {shape.dp_size * shape.pp_size} workers"
            )
        if gc.any():
            lines.append(
                f"recorded garbage collection: {shape.duration_s[gc].sum(axis=0).mean():.3g} s a step, all workers"
            )
        return Cause(
            kind="pauses",
            share=share,
            saved_s=saved_s,
            words="single passes pause intermittently, on different workers: mostly Python's garbage collection; "
            "collect at the same step on all ranks",
            evidence=tuple(lines),
        )

    def _stalling(self, places: NDArray[np.int64], lost_s: Floats) -> tuple[int, int] | None:
        """Return the worker with nearly all pauses, unless by chance."""
        shape = self._step.shape
        at = places[:, 1] * shape.pp_size + self._step.passes.stage[places[:, 0]]
        if len(places) < _STALLS_MIN or shape.dp_size * shape.pp_size < _WORKERS_MIN:
            return None
        by_worker = np.bincount(at, lost_s, shape.dp_size * shape.pp_size)
        worst = int(by_worker.argmax())
        few = (at == worst).sum() < _STALLS_MIN or by_worker[worst] < _MOSTLY * by_worker.sum()
        return None if few else (worst // shape.pp_size, worst % shape.pp_size)

    def _stall(
        self, at: tuple[int, int], places: NDArray[np.int64], lost_s: Floats, share: float, saved_s: float
    ) -> Cause:
        worker = self.worker(*at)
        own = (places[:, 1] == at[0]) & (self._step.passes.stage[places[:, 0]] == at[1])
        steps = self._step.shape.steps[np.unique(places[own, 2])]
        return Cause(
            kind="machine",
            share=share,
            saved_s=saved_s,
            words=f"{named(worker)} pauses intermittently, others hardly ever",
            workers=(worker,),
            stages=(at[1],),
            evidence=(
                f"{own.sum()} of {len(places)} passes that paused are its own, {lost_s[own].mean():.3g} s each, "
                f"in {len(steps)} steps from {steps[0]} to {steps[-1]}",
            ),
        )


def named(worker: SlowWorker) -> str:
    """Return a worker as text: data-parallel rank, stage and ranks."""
    ranks = ""
    if worker.ranks:
        first, last = worker.ranks[0], worker.ranks[-1]
        ranks = f" (rank {first})" if first == last else f" (ranks {first}-{last})"
    return f"dp {worker.dp_rank} stage {worker.stage}{ranks}"
