"""What must be left of a job's memory after a loss, looked up chunk by chunk, without asking the code that chooses."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.node.vault.messages import SealedStep
from holdfast.orders.backup import BackupOrder
from tests.sim.memory_job import Job
from tests.sim.memory_vaults import Vault


class Promise:
    """What is promised at the moment of a loss: a step at least as new as `at_least`; None: nothing is."""

    def __init__(self, job: Job, is_in_place: bool) -> None:
        """`is_in_place`: no machine is lost."""
        found = [_index(job, sealed) for sealed in job.sealed.values()]
        oldest, newest = min(found, default=-1), max(found, default=-1)
        at_least = oldest if is_in_place else -1
        if job.habits.keeps_up and job.is_armed():
            # The one before the newest that anybody has sealed of those that are sent; in the beginning that one.
            sent = [index for index, each in enumerate(job.past) if job.is_to_be_sent(each) and index <= newest]
            ours = [index for index in sent if job.past[index] == job.kept or _is_present(job, job.past[index])]
            at_least = max(at_least, ours[-2] if len(ours) > 1 else ours[-1])
        self.at_least = job.past[at_least] if at_least >= 0 else None


def check_left(job: Job, promise: Promise) -> None:
    """Some step of the present story can be had by all ranks, as the new orders say where, and is not too old."""
    if promise.at_least is None:
        return
    from_there = job.past[job.past.index(promise.at_least) :]
    missing = [next(missing_of(job, sealed), None) for sealed in reversed(from_there)]
    assert None in missing, f"no step from {promise.at_least} on is left: {missing}"


def check_choice(job: Job, promise: Promise, chosen: SealedStep | None) -> None:
    """What the ranks agree on is part of the story, and not too old."""
    if chosen is None:
        assert promise.at_least is None, f"the ranks find no step in common, {promise.at_least} was promised"
        return
    assert chosen in job.past, f"the ranks agree on {chosen}, which the job has left behind: {job.past}"
    if promise.at_least is not None:
        is_older = job.past.index(chosen) < job.past.index(promise.at_least)
        assert not is_older, f"the ranks agree on {chosen}, {promise.at_least} was promised"


def check_whole(job: Job, sealed: SealedStep) -> None:
    """A step that all ranks say they find is there with every chunk, whatever else is lost: ADR 12 promises that."""
    missing = next(missing_of(job, sealed), None)
    assert missing is None, f"the ranks agree on {sealed}, but {missing}"


def check_restored(job: Job, sealed: SealedStep) -> None:
    """Every rank has the bytes that it had at this step."""
    for rank in job.ranks:
        truth = dict(enumerate(job.shards.of(rank, sealed).chunks))
        found = [segment.data for segment in job.vault_of(rank).segments(rank, sealed)]
        assert found == [truth], f"rank {rank} has {found} at {sealed}, not {truth}"


def missing_of(job: Job, sealed: SealedStep) -> Iterator[str]:
    """What of a step cannot be had."""
    for rank in job.ranks:
        order, own = job.order_of(rank), job.vault_of(rank)
        named = [own, *_living(job, _sources_of(order))]
        with_seal = [vault for vault in named if any(vault.segments(rank, sealed))]
        if not with_seal:
            yield f"nobody has {sealed} of rank {rank}"
            continue
        alike = order.alike[rank - order.ranks.start] if order.alike else ()
        anybody = [*named, *_living(job, _sources_of_replicas(order, alike))]
        for number, hash_ in enumerate(job.shards.of(rank, sealed).chunks):
            if not any(_lies_at(vault, (rank, *alike), sealed, number, hash_) for vault in anybody):
                yield f"chunk {number} of {sealed} of rank {rank} is nowhere that its order leads to"


def _lies_at(vault: Vault, ranks: tuple[int, ...], sealed: SealedStep, number: int, hash_: int) -> bool:
    return any(segment.data.get(number) == hash_ for rank in ranks for segment in vault.segments(rank, sealed))


def _sources_of(order: BackupOrder) -> list[str]:
    return [address.node for address in (*order.sources, order.keeper) if address is not None]


def _sources_of_replicas(order: BackupOrder, alike: tuple[int, ...]) -> list[str]:
    nodes = {rank // order.nproc_per_node for rank in alike}
    return [
        address.node
        for replica in order.replicas
        if replica.node_rank in nodes
        for address in (replica.vault, *replica.others)
        if address is not None
    ]


def _living(job: Job, nodes: list[str]) -> list[Vault]:
    return [job.network.vaults[node] for node in dict.fromkeys(nodes) if node in job.network.vaults]


def _index(job: Job, sealed: SealedStep | None) -> int:
    return job.past.index(sealed) if sealed is not None else -1


def _is_present(job: Job, sealed: SealedStep) -> bool:
    return sealed.generation == job.generation
