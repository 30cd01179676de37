"""Finds out what other nodes' vaults hold of this node's ranks."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence

import structlog

from holdfast.node.frames import WireError
from holdfast.node.vault.messages import SealedStep, ShardName
from holdfast.orders.backup import VaultAddress
from holdfast_vault.assignments import Assignment
from holdfast_vault.cuts import Cut, is_news, survives
from holdfast_vault.peers.peer_link import NoPeerVault, PeerRefused, ask, dial
from holdfast_vault.peers.peer_messages import AskHeld, Held, RankSteps

FIND_S = 3.0
GRACE_S = 0.5
"""Time after the first answer with a step in which other nodes may answer with more: a lost node never answers."""
BACK_OFF_S = 0.1

log = structlog.get_logger(__name__)

Holders = Mapping[SealedStep, Sequence[VaultAddress]]
"""The vaults that have each step of a rank."""


class FoundShards:
    """Result of a search: the steps of each rank on other nodes."""

    def __init__(self, answers: Iterable[tuple[VaultAddress, RankSteps]]) -> None:
        self.cuts: dict[ShardName, Cut] = {}
        answers = list(answers)
        for _, shards in answers:
            if shards.cut is not None and is_news(shards.cut, self.cuts.get(shards.name)):
                self.cuts[shards.name] = shards.cut
        self._holders: dict[ShardName, dict[SealedStep, list[VaultAddress]]] = {}
        for address, shards in answers:
            for sealed in shards.sealed:
                if survives(sealed, self.cuts.get(shards.name)):
                    self._holders.setdefault(shards.name, {}).setdefault(sealed, []).append(address)

    def holders(self, name: ShardName) -> Holders:
        return self._holders.get(name, {})


def vaults_of(assignment: Assignment) -> tuple[VaultAddress, ...]:
    """Return the vaults that may have shards of this node's ranks, the likeliest first."""
    order = assignment.order
    return tuple(dict.fromkeys((*order.sources, *([order.keeper] if order.keeper is not None else []))))


def find_shards(assignment: Assignment) -> FoundShards:
    """Ask all of them at once; who does not answer in time has nothing."""
    return _Search(assignment).run()


class _Search:
    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment
        self._names = tuple(map(assignment.shard_of, assignment.order.ranks))
        self._vaults = vaults_of(assignment) if assignment.token else ()
        self._changed = threading.Condition()
        self._answers: dict[VaultAddress, tuple[RankSteps, ...]] = {}
        self._deadline = time.monotonic() + FIND_S

    def run(self) -> FoundShards:
        for vault in self._vaults:
            threading.Thread(target=self._ask, args=(vault,), daemon=True).start()
        with self._changed:
            while len(self._answers) < len(self._vaults) and (left := self._deadline - time.monotonic()) > 0:
                self._changed.wait(left)
            # Ordered by likelihood, not by speed of the answer.
            answers = [(vault, shards) for vault in self._vaults for shards in self._answers.get(vault, ())]
        return FoundShards(answers)

    def _ask(self, vault: VaultAddress) -> None:
        while True:
            shards: tuple[RankSteps, ...] | None = None
            try:
                with dial(vault, self._assignment, FIND_S) as link:
                    answer = ask(link, AskHeld(names=self._names))
                shards = answer.shards if isinstance(answer, Held) else ()
            except (NoPeerVault, PeerRefused) as error:
                log.info("a vault has nothing", vault=vault.node, reason=str(error))
                shards = ()
            except WireError as error:
                log.info("a vault does not report what it has", vault=vault.node, reason=str(error))
            with self._changed:
                if shards is not None:
                    self._answers[vault] = shards
                    if any(each.sealed for each in shards):
                        self._deadline = min(self._deadline, time.monotonic() + GRACE_S)
                    self._changed.notify_all()
                    return
                if time.monotonic() >= self._deadline:
                    return
                self._changed.wait(BACK_OFF_S)
