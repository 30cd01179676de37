"""Power cuts while a node's vault writes steps to the disk: what a restore takes is whole, and the newest that was said
to be durable.

Writing, publishing, retention and the choice of a step are production code; the disk is `step_disk`. A failing seed is
printed; `pytest tests/sim/test_power_cuts.py --seed N` runs that one alone. HOLDFAST_LONG=1 runs forty times as many.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import msgspec
import numpy as np
import pytest
import structlog

from holdfast.node.vault.messages import PersistTo
from holdfast.node.vault.seals import Bytes, seal
from holdfast.trainer.checkpoint.agreement import RankGroup
from holdfast.trainer.checkpoint.errors import CheckpointError, DamagedCheckpoint
from holdfast.trainer.checkpoint.exchange.verify import verify
from holdfast.trainer.checkpoint.layout.manifest import CheckpointManifest
from holdfast.trainer.checkpoint.layout.recipe import Recipe, RecipeRow, SealedPart, TensorChunk, part_name
from holdfast.trainer.checkpoint.restore_choice import RestoreChoice
from holdfast.trainer.checkpoint.storage.directory import DirectoryStorage
from holdfast.trainer.checkpoint.storage.folder import DirectoryFolder
from holdfast.trainer.checkpoint.storage.retention import Retention
from holdfast.trainer.checkpoint.storage.workplace import Owner
from holdfast_vault.disk import persist_publish, persist_writer
from holdfast_vault.disk.persist_task import PersistTask, ShardToWrite, StepPublished
from tests.sim.step_disk import PowerCut, StepDisk, flip_a_byte

SEEDS = 10 * (40 if "HOLDFAST_LONG" in os.environ else 1)
SEEDS_FOR_MUTANTS = 60
RANKS = range(2)
CUTS = 3
NBYTES = 600
KEPT = Retention(2)
RECIPE = Recipe(
    rows=(RecipeRow(("w",), TensorChunk("w", "uint8", (NBYTES,), (0,), (NBYTES,)), 0, NBYTES),),
    spaces={"w": ""},
    objects_of=(),
)
INDEX = msgspec.msgpack.encode(((), RECIPE))
OBJECTS = msgspec.msgpack.encode(())


@contextlib.contextmanager
def _memory_file(content: Bytes) -> Iterator[int]:
    descriptor = os.memfd_create("shard")
    try:
        os.write(descriptor, content.tobytes())
        yield descriptor
    finally:
        os.close(descriptor)


class Job:
    """A job of two nodes with a rank each, its generations and what it was told of its steps."""

    def __init__(self, seed: int, folder: Path, is_synced: Callable[[str], bool]) -> None:
        self.chance = random.Random(seed)
        self._folder = folder
        self._is_synced = is_synced
        self._lives = 0
        self.generation = 0
        self.step = 0
        self.durable = 0
        """The newest step that was said to be on the disk."""
        self.is_damaged = False
        """The disk lost what it had said to have: only what is whole can be expected then."""
        self.story: list[str] = []

    @property
    def root(self) -> Path:
        return self._folder / str(self._lives) / "job" / "checkpoints"

    def run(self) -> None:
        (self._folder / "0").mkdir()
        for _ in range(CUTS):
            self._live(self.chance.randint(1, 250))
            if self.chance.random() < 0.2 and (damaged := flip_a_byte(self.root.parents[1], self.chance)) is not None:
                self.is_damaged = True
                self.story.append(f"a byte of {damaged} is flipped")
        self._restore()

    def _live(self, cut_at: int) -> None:
        here, after = self.root.parents[1], self._folder / str(self._lives + 1)
        disk = StepDisk(here, self.chance, cut_at, self._is_synced)
        try:
            with pytest.MonkeyPatch.context() as patch:
                disk.attach(patch)
                try:
                    while True:
                        self._generation()
                except PowerCut:
                    self.story.append("the power is cut")
            disk.after_cut(after)
            self._lives += 1
        finally:
            disk.close()

    def _generation(self) -> None:
        self._restore()
        for _ in range(self.chance.randint(1, 6)):
            self.step += 1
            if self.chance.random() < 0.7:
                self._persist()
            if self.chance.random() < 0.2:
                self._save()

    def _restore(self) -> None:
        """Go on from the newest step that is whole, as ranks do."""
        self.generation += 1
        storage = self._storage("")
        choice = RestoreChoice(storage, RankGroup())
        try:
            while (manifest := choice.newest()) is not None and (damage := self._damage(manifest.step)):
                choice.set_aside(manifest.step, DamagedCheckpoint(damage))
        except CheckpointError:
            # A job does not start over unasked because all that it has is damaged.
            if not self.is_damaged:
                raise
            manifest = None
        found = manifest.step if manifest is not None else 0
        self.story.append(f"generation {self.generation} goes on from {found}; durable is {self.durable}")
        assert found >= self.durable or self.is_damaged
        if manifest is not None:
            self._check(manifest)
        self.step = self.durable = found

    def _check(self, manifest: CheckpointManifest) -> None:
        folder = self.root / f"step-{manifest.step:08d}"
        assert [part.name for part in manifest.parts] == [part_name(rank) for rank in RANKS]
        made = {_made_by((folder / part_name(rank)).read_bytes(), rank, manifest.step) for rank in RANKS}
        assert len(made) == 1, f"step {manifest.step} is of generations {made}"

    def _damage(self, step: int) -> str:
        found = verify(DirectoryFolder(self.root / f"step-{step:08d}"), threads=1, on_bytes=lambda _: None)
        return str(found.damage) if found.damage else ""

    def _storage(self, prefix: str) -> DirectoryStorage:
        return DirectoryStorage(self.root, owner=Owner("job", 1, self.generation), prefix=prefix)

    def _persist(self) -> None:
        """Both vaults write the step, that of rank 0 publishes it; or one of them leaves it out."""
        writing = [rank for rank in reversed(RANKS) if self.chance.random() < 0.9]
        for rank in writing:
            self.story.append(f"rank {rank} writes {self.step} of generation {self.generation}")
            with _memory_file(_content(self.generation, self.step, rank)) as descriptor:
                for outcome in persist_writer.run(self._task(rank, descriptor)):
                    self.story.append(f"  {type(outcome).__name__}")
                    if isinstance(outcome, StepPublished):
                        self.durable = max(self.durable, outcome.step)

    def _task(self, rank: int, descriptor: int) -> PersistTask:
        memory = _content(self.generation, self.step, rank)
        shard = ShardToWrite(
            rank=rank,
            descriptor=descriptor,
            nbytes=NBYTES,
            index=INDEX,
            objects=OBJECTS,
            seal=seal((INDEX, OBJECTS), memory),
        )
        return PersistTask(
            to=PersistTo(place=str(self.root), steps_max=KEPT.steps_max),
            job="job",
            submitted_ms=1,
            generation=self.generation,
            step=self.step,
            world_size=len(RANKS),
            shards=(shard,),
            ledgers=("",),
        )

    def _save(self) -> None:
        """The script saves the step itself: it replaces what the vaults have published."""
        self.story.append(f"the script saves {self.step} of generation {self.generation}")
        storage = self._storage("")
        parts = []
        for rank in RANKS:
            part = SealedPart(RECIPE, OBJECTS, self._memory(rank))
            size = storage.write(self.step, part_name(rank), part.chunks())
            parts.append(part.record(part_name(rank), size))
        storage.publish(
            CheckpointManifest(
                step=self.step,
                generation=self.generation,
                world_size=len(RANKS),
                mesh={},
                created_at=0.0,
                parts=tuple(parts),
            )
        )
        self.durable = self.step
        storage.retain(KEPT)

    def _memory(self, rank: int) -> Bytes:
        return _content(self.generation, self.step, rank)


def _content(generation: int, step: int, rank: int) -> Bytes:
    """What a rank has at a step; its first bytes say so."""
    memory = np.frombuffer(random.Random(f"{generation} {step} {rank}").randbytes(NBYTES), np.uint8).copy()
    memory[:3] = generation, step, rank
    return memory


def _made_by(part: bytes, rank: int, step: int) -> int:
    generation, its_step, its_rank = part[:3]
    assert (its_step, its_rank) == (step, rank)
    assert part[:NBYTES] == _content(generation, step, rank).tobytes()
    return generation


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # Nothing else happens while a publisher waits for other nodes.
    now = [0.0]
    clock = SimpleNamespace(sleep=lambda _: now.append(now[-1] + 1e6), monotonic=lambda: now[-1], time=lambda: 0.0)
    monkeypatch.setattr(persist_publish, "time", clock)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
    structlog.reset_defaults()


def history(
    seed: int, folder: Path, is_synced: Callable[[str], bool] = lambda path: True, *, tells_truth: bool = True
) -> Job:
    """Raises AssertionError. `tells_truth` False: the disk may lose what it said to have."""
    (folder / str(seed)).mkdir()
    job = Job(seed, folder / str(seed), is_synced)
    job.is_damaged = not tells_truth
    try:
        job.run()
    except Exception as error:
        raise AssertionError("\n".join([*job.story, f"{error!r}", f"seed {seed}"])) from error
    return job


@pytest.mark.timeout(1500)
def test_a_restore_takes_the_newest_whole_step(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    only = request.config.getoption("--seed")
    for seed in [only] if only is not None else range(SEEDS):
        history(seed, tmp_path)


LEFT_OUT = {
    "the part of a rank": r"/rank-\d+\.part$",
    "the manifest": r"/manifest\.json$",
    "the names in a step": r"step-\d+$",
    "the names in the root": r"/checkpoints$",
    "the root itself": r"/job$",
}


@pytest.mark.parametrize("what", LEFT_OUT)
def test_no_call_of_fsync_may_be_left_out(tmp_path: Path, what: str) -> None:
    pattern = re.compile(LEFT_OUT[what])
    for seed in range(SEEDS_FOR_MUTANTS):
        try:
            history(seed, tmp_path, lambda path: pattern.search(path) is None)
        except AssertionError:
            return
    raise AssertionError(f"nothing is lost without the synchronization of {what}")


@pytest.mark.timeout(1500)
def test_a_disk_that_lies_never_makes_a_damaged_step_of_a_whole_one(tmp_path: Path) -> None:
    for seed in range(SEEDS):
        lies = random.Random(seed)
        history(seed, tmp_path, partial(_at_times, lies), tells_truth=False)


def _at_times(chance: random.Random, _: str) -> bool:
    return chance.random() < 0.7
