"""What logs say is put on the ledgers' steps, of the present generation only, and said once, also by the next agent."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from holdfast.events import NumbersLogged
from holdfast.events.parts.job import JobSpec
from holdfast.events.parts.samples import StepSample
from holdfast.orders.node import NodeOrder, Placement
from holdfast_agent.plan.node_state import Crew
from holdfast_agent.training_logs.log_reader import LogNews, LogReader, WatchedRanks
from holdfast_agent.training_logs.open_files import FileKey
from holdfast_agent.training_logs.readings import StepReading
from holdfast_agent.watching.ledgers import moment
from holdfast_agent.watching.logged_numbers import PATHS_MAX, LoggedNumbers, LogsRead

BEGAN_NS = 1_700_000_000 * 10**9
S = 10**9
COMMON: dict[str, Any] = {"at": datetime(2026, 1, 1, tzinfo=UTC), "source": "agent/a", "node": "a", "job": "job"}


class Reader(LogReader):
    """A reader without a thread: the test says what it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.watched: WatchedRanks | None = None
        self.offsets: dict[FileKey, int] = {}
        self.fresh: list[LogNews] = []

    def watch(self, watched: WatchedRanks | None, offsets: Any = None) -> None:
        self.watched = watched
        self.offsets = self.offsets if offsets is None else dict(offsets)

    def take(self) -> list[LogNews]:
        taken, self.fresh = self.fresh, []
        return taken

    def reads(self, *readings: StepReading, rank: int = 0, offset: int = 100, inode: int = 1) -> None:
        self.fresh.append(
            LogNews(
                key=FileKey(1, inode),
                rank=rank,
                kind="wandb",
                path="/run-a.wandb",
                tags={"loss": "train/loss"},
                readings=readings,
                offset=offset,
            )
        )


class Scene:
    """Two ranks that have ledgers, read from the first step on or by an agent before this one."""

    def __init__(self, *, from_first: bool = True) -> None:
        self.reader = Reader()
        self.from_first = from_first
        self.numbers = LoggedNumbers(lambda: self, self.reader)

    def began_ns(self, rank: int) -> int | None:
        return BEGAN_NS if rank < 2 else None

    def is_read_from_first(self, rank: int) -> bool:
        return self.from_first

    def steps(self, *ended_s: float, rank: int = 0, first: int = 0) -> None:
        self.numbers.note_steps(
            StepSample(rank=rank, step=first + number, ended_at=moment(BEGAN_NS + int(at * S)), duration_s=1.0)
            for number, at in enumerate(ended_s)
        )

    def said(self) -> tuple[list[NumbersLogged], LogsRead | None]:
        self.numbers.take()
        return self.numbers.take_events(COMMON)


def crew(generation: int = 1, **job: Any) -> Crew:
    spec = JobSpec(name="job", script="/a.py", cwd="/work", directory="/d", nproc_per_node=2, **job)
    placement = Placement(job=spec, node_rank=0, master_addr="a", master_port=1)
    order = NodeOrder(node="a", job="job", epoch=1, generation=generation, cause=None, placement=placement)
    return Crew(order=order, forked=True, pids={0: 10, 1: 11})


def reading(at_s: float, step: int = 1, **values: float) -> StepReading:
    return StepReading(step, BEGAN_NS + int(at_s * S), values or {"loss": 1.0})  # type: ignore[arg-type]


@pytest.fixture
def scene() -> Scene:
    made = Scene()
    made.numbers.watch(crew())
    return made


def test_a_number_is_of_the_step_that_the_rank_had_completed(scene: Scene) -> None:
    scene.steps(1.0, 2.0, 3.0)
    scene.steps(1.5, 2.5, rank=1, first=10)
    scene.reader.reads(reading(2.1, step=800, loss=0.5, mfu=0.4), reading(3.0, step=1200, loss=math.nan))
    scene.reader.reads(reading(2.1, grad_norm=math.inf), rank=1, inode=2)
    events, _ = scene.said()
    told = [
        (it.rank, it.step, it.logged_step, it.loss, it.mfu, it.not_finite) for event in events for it in event.samples
    ]
    assert told == [
        (0, 1, 800, 0.5, 0.4, {}),
        (0, 2, 1200, None, None, {"loss": "nan"}),
        (1, 10, 1, None, None, {"grad_norm": "inf"}),
    ]
    assert [event.before for event in events] == [0, 2]
    assert events[0].kind == "wandb" and events[0].tags == {"loss": "train/loss"}


def test_what_an_earlier_generation_logged_into_the_same_file_is_not_of_this_one(scene: Scene) -> None:
    scene.steps(1.0, 2.0)
    scene.reader.reads(reading(-5.0), reading(-0.001), reading(1.2))
    events, read = scene.said()
    assert [it.step for event in events for it in event.samples] == [0] and read is not None and read.said == 1


def test_nothing_is_said_of_a_rank_without_a_ledger_or_steps(scene: Scene) -> None:
    scene.reader.reads(reading(1.0))
    scene.steps(1.0, rank=2)
    scene.reader.reads(reading(1.0), rank=2)
    events, read = scene.said()
    # But it has been read.
    assert events == [] and read is not None and dict(read.offsets) == {FileKey(1, 1): 100}
    assert scene.said() == ([], None)


def test_the_next_agent_goes_on_where_this_one_stopped(scene: Scene) -> None:
    scene.steps(1.0)
    scene.reader.reads(reading(1.1), offset=77)
    _, read = scene.said()
    assert read is not None
    remembered = msgspec.json.decode(msgspec.json.encode(read), type=LogsRead)
    after = Scene(from_first=False)
    after.numbers.watch(crew(), remembered)
    assert after.reader.offsets == {FileKey(1, 1): 77}
    after.steps(2.0, first=1)
    # When it was written only now, nobody knows any more of which step it was.
    after.reader.reads(reading(1.5), reading(2.1), offset=99)
    events, _ = after.said()
    assert [it.step for event in events for it in event.samples] == [1]
    assert [event.before for event in events] == [1]
    # The next generation counts anew, and reads on in the same file.
    later = Scene()
    later.numbers.watch(crew(generation=2), remembered)
    later.steps(1.0)
    later.reader.reads(reading(1.1))
    assert [event.before for event in later.said()[0]] == [0] and later.reader.offsets == {FileKey(1, 1): 77}


def test_what_the_user_and_the_ranks_name_is_handed_on(scene: Scene) -> None:
    scene.numbers.watch(crew(2, tags={"loss": "mine"}, training_logs=("logs/*",)))
    read = scene.numbers.add_reported(1, "/logs/events.out.tfevents.1")
    watched = scene.reader.watched
    assert watched is not None and watched.paths == read.paths == {"/logs/events.out.tfevents.1": 1}
    assert (watched.patterns, watched.folder, watched.first_rank) == (("logs/*",), "/work", 0)
    choice = watched.tags.choice("mine")
    assert choice is not None and choice.quantity == "loss"
    for number in range(2 * PATHS_MAX):
        read = scene.numbers.add_reported(0, f"/logs/events.out.tfevents.{number}")
    assert len(read.paths) == PATHS_MAX
    # Of a rank that ended the processes change, of the order nothing.
    scene.numbers.watch(msgspec.structs.replace(crew(2, training_logs=("logs/*",)), pids={0: 10}))
    assert scene.reader.watched is not None and len(scene.reader.watched.paths) == PATHS_MAX
    scene.numbers.watch(None)
    assert scene.reader.watched is None
