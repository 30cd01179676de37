"""Execution of plans: the commands to the zygote, and what else follows from a new state."""

from __future__ import annotations

import asyncio
from functools import partial

from holdfast.bounded_calls import in_thread
from holdfast.orders.node import NodeOrder
from holdfast.settings.timeouts import Timeouts
from holdfast_agent.companions.backups import Backups
from holdfast_agent.companions.code_place import CodePlaces
from holdfast_agent.companions.contexts import Contexts
from holdfast_agent.companions.rank_user import RankUser, RankUsers
from holdfast_agent.companions.start_command import script_of, start_command
from holdfast_agent.companions.warm_up_command import warm_up_command
from holdfast_agent.companions.zygote_link import ZygoteLink
from holdfast_agent.files.code_store import CodeStore
from holdfast_agent.files.directories import Directories
from holdfast_agent.files.file_retention import FileRetention
from holdfast_agent.plan import actions
from holdfast_agent.plan.actions import Action, Plan
from holdfast_agent.plan.node_state import NO_FENCE, AgentState
from holdfast_agent.watching.watcher import Watcher
from holdfast_agent.zygote.wire import AckExit, Command, End, Fence, StartRanks, StartStore, StopRanks, StopStore

REMOVE_AFTER_S = 2.0
"""Time after which files of earlier generations are removed: ranks that start need the processors."""


class Effects:
    def __init__(
        self,
        address: str,
        directories: Directories,
        timeouts: Timeouts,
        zygote: ZygoteLink,
        code: CodeStore,
        retention: FileRetention,
        watcher: Watcher,
        backups: Backups,
        contexts: Contexts,
    ) -> None:
        self._address = address
        self._directories = directories
        self._timeouts = timeouts
        self._zygote = zygote
        self._code = code
        self._retention = retention
        self._watcher = watcher
        self._backups = backups
        self._contexts = contexts
        self._rank_users = RankUsers(directories)
        self._code_places = CodePlaces(code)
        self.rank_user: tuple[Fence, RankUser] = (NO_FENCE, RankUser(None))
        """User of the ranks of the order that was started last."""

    def carry_out(self, plan: Plan, before: AgentState) -> None:
        """Carry out a plan that is durable."""
        commands = [command for action in plan.actions if (command := self._command(action)) is not None]
        if commands:
            self._zygote.send(*commands)
        for action in plan.actions:
            if isinstance(action, actions.Fork):
                job, fence = action.order.job or "", action.order.fence
                remove = partial(self._directories.remove_old_generations, job, fence)
                # Freeing the ranks' files takes longer than a decision may.
                asyncio.get_running_loop().call_later(REMOVE_AFTER_S, in_thread, remove)
        if any(isinstance(action, actions.Stop) for action in plan.actions):
            # Not at the first sign of trouble: the agent is needed then.
            order = plan.state.durable.order
            self._code_places.expect(order.placement if order is not None else None)
        if plan.state.crew != before.crew:
            self._watcher.watch(plan.state.crew)
        if plan.state.durable.order != before.durable.order:
            self._backups.placed(plan.state.durable.order)
        if any(isinstance(action, actions.EndZygote) for action in plan.actions):
            self._zygote.end(End())

    def _command(self, action: Action) -> Command | StartRanks | None:
        match action:
            case actions.FetchCode():
                self._code.order(action.order)
            case actions.Fork() if action.order.placement is not None:
                return self._start(action.order)
            case actions.Stop():
                grace_s = self._timeouts.grace_s(is_urgent=action.is_urgent)
                return StopRanks(number=action.number, grace_s=grace_s, at_once=action.at_once)
            case actions.StartWarmUp():
                return warm_up_command(action.order, self._address)
            case actions.OpenStore() if action.order.placement is not None:
                return StartStore(fence=action.order.fence, port=action.order.placement.master_port)
            case actions.CloseStores():
                return StopStore(keep=action.keep.fence if action.keep else None)
            case actions.Acknowledge():
                return AckExit(exit_id=action.exit_id)
            case _:
                pass
        return None

    def _start(self, order: NodeOrder) -> StartRanks:
        assert order.placement is not None
        self._retention.begin(order.job or "")
        rank_user = self._rank_users.choose(order, script_of(order.placement, self._code.place))
        self.rank_user = order.fence, rank_user
        code = self._code_places.place(order.placement, rank_user.user)
        return self._contexts.begin(order, start_command(order, self._directories, code, rank_user.user))
