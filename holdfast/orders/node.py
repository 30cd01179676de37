"""The ranks of one node. The controller writes it, the node's agent carries it out.

Orders are fenced by (`epoch`, `generation`): the epoch grows whenever the node is handed to a job, the generation with
every start or stop within the job. An agent never returns to an older order.
"""

from __future__ import annotations

import msgspec

from holdfast.code.manifest import Digest
from holdfast.events.parts.job import JobSpec, Purpose
from holdfast.events.parts.scalars import Count, Id, Moment, Name, Port, Step
from holdfast.orders.base import Order
from holdfast.orders.replay import ReplaySettings


class WarmUp(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Tests of a node beside the start of its ranks."""

    limit_s: float
    tests_devices: bool = False
    """True for nodes that are new to the job: ranks of earlier generations may still hold the devices of others."""


class Placement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The part of one generation of a job that one node runs."""

    job: JobSpec
    """For `checks` with the program of the checks in place of the user's; for a `replay` one group of the job."""
    node_rank: Count
    master_addr: str
    master_port: Port
    restore_at_most: Step | None = None
    """The ranks restore no newer step; newer ones are given up."""
    refuse_scratch: bool = False
    """The job has made checkpoints: ranks that find none end, unless its owner allows to start from scratch."""
    code_version: Digest | None = None
    submitted_at: Moment | None = None
    """Distinguishes the job from a later one of the same name."""
    purpose: Purpose = "train"
    """`checks` test the nodes while training is paused; a `replay` trains again what was trained."""
    replay: ReplaySettings | None = None
    warm_up: WarmUp | None = None
    """None: the ranks start on a node that is not tested."""

    @property
    def ranks(self) -> range:
        """Global ranks of this node."""
        first = self.node_rank * self.job.nproc_per_node
        return range(first, first + self.job.nproc_per_node)


class NodeOrder(Order, frozen=True, kw_only=True, omit_defaults=True):
    """A node's desired state; without a placement it runs no ranks."""

    kind = "node"
    writer = "controller"
    addressee = "node"

    node: Name
    epoch: Count
    generation: Count
    job: Name | None = None
    placement: Placement | None = None
    cause: Id | None = None
    incident: Id | None = None
    supersedes: tuple[Count, Count] | None = None
    """Fence of an order with a higher fence that the controller does not know, which this order replaces."""

    @property
    def fence(self) -> tuple[int, int]:
        """Orders compare by this; an agent refuses an order that is not above its newest."""
        return (self.epoch, self.generation)

    @property
    def message_id(self) -> str:
        """Id by which the bus drops a second copy: key, fence and cause."""
        return f"{self.key}-{self.epoch}-{self.generation}-{self.cause or ''}-{self.supersedes or ''}"
