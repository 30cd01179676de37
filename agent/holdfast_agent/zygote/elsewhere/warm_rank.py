"""An interpreter made ahead: it imports what ranks need, then awaits the plan of one.

It has the user, the environment and the interpreter of the rank that it will be, so that even those restart within
milliseconds which cannot be forks of the zygote.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from typing import NoReturn

import msgspec

from holdfast.node.affinity.bound import bind
from holdfast.node.frames import receive
from holdfast.node.kernel import set_process_name
from holdfast.node.vault.userfaultfd import KEPT_VARIABLE
from holdfast.trainer import rank as trainer_rank
from holdfast.trainer.hooks import install_hooks
from holdfast.trainer.known_imports import import_noted, import_until_ready
from holdfast_agent.zygote import preload
from holdfast_agent.zygote.elsewhere.bootstrap import start_program
from holdfast_agent.zygote.plan_file import read_plan
from holdfast_agent.zygote.wire import RankSlot


def main(argv: Sequence[str]) -> NoReturn:
    """Prepare, then become the rank whose plan arrives on the socket with this descriptor. With the name of a device
    and the memory that must stay free there, hold a context on it meanwhile.
    """
    orders, device = int(argv[0]), argv[1] if len(argv) > 1 else ""
    os.set_inheritable(orders, False)
    set_process_name("rank-to-be")
    install_hooks.install()
    preload.import_modules()
    preload.rehearse()
    preload.read_sources()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, fileno=orders) as link:
        if device:
            from holdfast.trainer.ahead.context import hold_context

            import_noted(link)
            hold_context(link, device, int(argv[2]))
        else:
            import_until_ready(link)
        # Raises WireError when the zygote ends: no process waits for this one then.
        slot, plans = receive(link, msgspec.msgpack.Decoder(RankSlot))
    assert plans is not None
    plan = read_plan(plans, slot)
    os.close(plans)
    set_process_name(f"rank-{slot.rank}")
    kept = {KEPT_VARIABLE: os.environ[KEPT_VARIABLE]} if KEPT_VARIABLE in os.environ else {}
    os.environ.clear()
    os.environ.update(plan.environment | kept)
    for note in plan.notes:
        sys.stderr.write(f"holdfast: {note}\n")
    bind(plan.cpus)
    os.chdir(plan.cwd)
    if device:
        from holdfast.trainer.ahead.context import context_works

        if not context_works(device):
            arguments = (*(("-m",) if plan.is_module else ()), plan.script, *plan.args)
            python, *command = start_program(plan, "holdfast.trainer.rank", arguments)
            os.execve(python, (python, *command), dict(os.environ))
    trainer_rank.run(plan.script, plan.args, is_module=plan.is_module)


if __name__ == "__main__":
    main(sys.argv[1:])
