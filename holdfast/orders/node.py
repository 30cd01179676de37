"""What a node should run. The controller writes it, the node's agent makes it so.

Control is level-triggered: an order holds until a newer one replaces it, however often or late it is
read. Orders are fenced by (`epoch`, `generation`): the epoch grows whenever the node is handed to a job,
the generation with every start or stop within it. An agent never goes back to an older order.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from holdfast.code.manifest import Digest
from holdfast.decoding import read
from holdfast.events.parts.job import Endpoint, JobSpec, Purpose
from holdfast.events.parts.samples import SlowStage
from holdfast.events.parts.scalars import Count, Id, Moment, Name, Port, Step
from holdfast.orders.replay import ReplaySettings


class Placement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The part of one generation that one node runs. `submitted_at` tells a job from a later one of the same name.

    `restore_at_most`: its ranks restore no newer step, and what is newer is given up. `purpose` tells what the ranks
    are for: those of `checks` test the nodes while training stands still, and `job` has their program in place of the
    user's; those of a `replay` train again what was trained, as `replay` says, and `job` is one group of them.
    """

    job: JobSpec
    node_rank: Count
    master_addr: str
    master_port: Port
    restore_at_most: Step | None = None
    code_version: Digest | None = None
    submitted_at: Moment | None = None
    purpose: Purpose = "train"
    replay: ReplaySettings | None = None

    @property
    def ranks(self) -> range:
        """The global ranks that this node runs."""
        first = self.node_rank * self.job.nproc_per_node
        return range(first, first + self.job.nproc_per_node)


class NodeDesired(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One node's desired state; without a placement it runs no ranks."""

    node: Name
    epoch: Count
    generation: Count
    job: Name | None = None
    placement: Placement | None = None
    cause: Id | None = None
    incident: Id | None = None
    supersedes: tuple[Count, Count] | None = None
    """The fence of an order that the controller never gave: this one takes its place, though its own fence is lower."""

    @property
    def fence(self) -> tuple[int, int]:
        """Orders compare by this; an agent refuses what is not above its newest."""
        return (self.epoch, self.generation)


class CodeWanted(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The code versions that a job's nodes may be told to run next, the likeliest first; standby nodes fetch them too.

    Only a hint: who never hears of it fetches what its order names. `root` and `outside` as in `JobSpec`.
    """

    job: Name
    versions: tuple[Digest, ...] = ()
    root: str = ""
    outside: tuple[str, ...] = ()
    cause: Id | None = None


class TraceWanted(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the ranks of this generation do is to be traced on all nodes, once for each `id`.

    Whoever reads it after `until` does nothing: nobody waits for the answer any more. `native`: also frames of compiled
    code, which pauses each process for a while.
    """

    id: Id
    job: Name
    generation: Count
    until: Moment
    native: bool = False


TEST_S_MAX = 30.0
TRANSFER_BYTES_MAX = 1 << 30
TestSeconds = Annotated[float, msgspec.Meta(ge=0, le=TEST_S_MAX)]


class SlowTests(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What to test while training is held (GREYHOUND §4.3): GEMM for `compute_s` on `compute_ranks`, all at once; or,
    once all are held, transfers of `transfer_bytes` from sender to receiver, by node rank.

    Every rank stops before it begins anything after step `after_step`, which should be by `held_by`; it goes on at
    `until` at the latest, whatever becomes of who asked. The first pass of transfers begins at `passes_at`, and each
    has `pass_s`: nobody is in two at the same time.
    """

    after_step: Step
    held_by: Moment
    until: Moment
    compute_ranks: tuple[Count, ...] = ()
    compute_s: TestSeconds = 0.0
    passes: tuple[tuple[tuple[Count, Count], ...], ...] = ()
    passes_at: Moment | None = None
    pass_s: TestSeconds = 0.0
    endpoints: dict[Count, Endpoint] = {}
    transfer_bytes: Annotated[int, msgspec.Meta(ge=0, le=TRANSFER_BYTES_MAX)] = 0


class SlowWanted(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job's nodes are to say how their ranks spent the last `iterations`, or to make tests as well, or to let
    training go on after these (`is_over`). Each stage of one `id` is obeyed once, and not after `until`.
    """

    id: Id
    job: Name
    generation: Count
    until: Moment
    iterations: Count = 16
    tests: SlowTests | None = None
    is_over: bool = False

    @property
    def stage(self) -> SlowStage:
        """What it asks for."""
        if self.is_over:
            return "over"
        return "profile" if self.tests is None else "transfers" if self.tests.passes else "hold"


class UnreadableOrder(ValueError):
    """A desired state that cannot be read; the message says where it breaks."""


_decoder = msgspec.json.Decoder(NodeDesired)


def encode(desired: NodeDesired) -> bytes:
    """The order as JSON."""
    return msgspec.json.encode(desired)


def decode(body: bytes) -> NodeDesired:
    """The order in `body`.

    Raises:
        UnreadableOrder: not JSON, or with a missing or wrong field.
    """
    return read(_decoder, body, UnreadableOrder)


_trace_decoder = msgspec.json.Decoder(TraceWanted)


def decode_trace(body: bytes) -> TraceWanted:
    """The trace that is wanted by `body`.

    Raises:
        UnreadableOrder: not JSON, or with a missing or wrong field.
    """
    return read(_trace_decoder, body, UnreadableOrder)


_slow_decoder = msgspec.json.Decoder(SlowWanted)


def decode_slow(body: bytes) -> SlowWanted:
    """What is wanted of a slow job by `body`.

    Raises:
        UnreadableOrder: not JSON, or with a missing or wrong field.
    """
    return read(_slow_decoder, body, UnreadableOrder)


_wanted_decoder = msgspec.json.Decoder(CodeWanted)


def decode_wanted(body: bytes) -> CodeWanted:
    """What is wanted by `body`.

    Raises:
        UnreadableOrder: not JSON, or with a missing or wrong field.
    """
    return read(_wanted_decoder, body, UnreadableOrder)
