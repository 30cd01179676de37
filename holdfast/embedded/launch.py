"""Start of a supervisor, in the foreground of a terminal or detached from it."""

import asyncio
import os
import signal
import sys
import traceback
from collections.abc import Callable
from typing import NoReturn

import msgspec

from holdfast.embedded.errors import EmbeddedError, StartFailed
from holdfast.embedded.layout import ClusterInfo, ClusterLayout
from holdfast.embedded.options import ClusterOptions
from holdfast.embedded.processes.child_process import describe_exit
from holdfast.embedded.processes.fork_server_link import ForkServerLink, start_fork_server
from holdfast.embedded.processes.logfile import RotatingLog
from holdfast.embedded.services import ClusterPlan
from holdfast.embedded.supervisor import Supervisor
from holdfast.node.kernel import die_with_parent

ShowLine = Callable[[str], None]


class _Progress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line on the pipe from a detached supervisor to the command that started it."""

    line: str | None = None
    error: str | None = None
    ready: bool = False


def run_foreground(
    layout: ClusterLayout,
    plan: ClusterPlan,
    options: ClusterOptions,
    show_line: ShowLine,
    on_ready: Callable[[ClusterInfo], None],
) -> None:
    """Run a cluster here until a signal to end or a Stop request; a second signal forces it. Raises EmbeddedError."""
    fork_server = start_fork_server()
    try:
        asyncio.run(_supervise(layout, plan, options, show_line, on_ready, fork_server))
    except BaseExceptionGroup as group:
        ours, other = group.split(EmbeddedError)
        if ours is None or other is not None:
            raise
        raise _first(ours) from group


def run_detached(
    layout: ClusterLayout, plan: ClusterPlan, options: ClusterOptions, show_line: ShowLine, *, wait: bool
) -> int:
    """Run a cluster in a separate process, which outlives this one and its terminal, unless it is `for_one_run`. Return
    its pid. With `wait`, returns when all of it is ready; without, as soon as it holds the directory. Raises
    StartFailed if it exits before. Call it while this process has one thread.
    """
    layout.create(plan.passage_gid)
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        if options.for_one_run:
            # An orderly stop: whatever ends the command ends its cluster.
            die_with_parent(parent, signal.SIGTERM)
        _become_daemon(layout, plan, options, writing)
    os.close(writing)
    try:
        with open(reading, "rb") as stream:
            for message in stream:
                progress = msgspec.json.decode(message, type=_Progress)
                if progress.error is not None:
                    os.waitpid(pid, 0)
                    raise StartFailed(progress.error)
                if progress.line is not None:
                    show_line(progress.line)
                if progress.ready or not wait:
                    return pid
    except KeyboardInterrupt:
        os.kill(pid, signal.SIGINT)  # A user who stops waiting does not want the cluster either.
        os.waitpid(pid, 0)
        raise
    _, status = os.waitpid(pid, 0)
    raise StartFailed(
        f"the supervisor ended ({describe_exit(os.waitstatus_to_exitcode(status))}) before the cluster was ready. "
        f"See {layout.log('supervisor')}"
    )


def _become_daemon(layout: ClusterLayout, plan: ClusterPlan, options: ClusterOptions, pipe: int) -> NoReturn:
    code = 1
    try:
        os.setsid()
        log = RotatingLog(layout.log("supervisor"))
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        # Only unexpected output arrives here, such as the traceback of an internal error.
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
        os.close(null)
        log.close()
        with open(pipe, "wb", buffering=0) as listener:

            def send(progress: _Progress) -> None:
                if not listener.closed:
                    try:
                        listener.write(msgspec.json.encode(progress) + b"\n")
                    except BrokenPipeError:
                        listener.close()

            def ready(_: ClusterInfo) -> None:
                send(_Progress(ready=True))
                listener.close()

            try:
                run_foreground(layout, plan, options, lambda line: send(_Progress(line=line)), ready)
            except EmbeddedError as error:
                send(_Progress(error=str(error)))
            else:
                code = 0
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        os._exit(code)  # The stack below belongs to the process that forked.


async def _supervise(
    layout: ClusterLayout,
    plan: ClusterPlan,
    options: ClusterOptions,
    show_line: ShowLine,
    on_ready: Callable[[ClusterInfo], None],
    fork_server: ForkServerLink | None,
) -> None:
    supervisor = Supervisor(layout, plan, options, show_line, fork_server)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup passes an ignored signal on: it stays ignored.
            loop.add_signal_handler(number, supervisor.interrupt)
    await supervisor.run(on_ready)


def _first(group: BaseExceptionGroup[EmbeddedError]) -> EmbeddedError:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
