"""What a node should run. The controller writes it, the node's agent makes it so.

Control is level-triggered: an order holds until a newer one replaces it, however often or late it is
read. Orders are fenced by (`epoch`, `generation`): the epoch grows whenever the node is handed to a job,
the generation with every start or stop within it. An agent never goes back to an older order.
"""

from __future__ import annotations

import msgspec

from holdfast.code.manifest import Digest
from holdfast.event_parts import Count, Id, JobSpec, Moment, Name, Port, Purpose, Step
from holdfast.reading import read
from holdfast.replay_settings import ReplaySettings


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


_wanted_decoder = msgspec.json.Decoder(CodeWanted)


def decode_wanted(body: bytes) -> CodeWanted:
    """What is wanted by `body`.

    Raises:
        UnreadableOrder: not JSON, or with a missing or wrong field.
    """
    return read(_wanted_decoder, body, UnreadableOrder)
