"""Processes killed, crashed and frozen: one rank, a data loader's worker, all of a node."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Literal

from holdfast.embedded.control import PowerOff, PowerOn, ask
from holdfast.embedded.errors import ControlRefused, NoCluster
from holdfast.embedded.layout import ClusterLayout
from holdfast.embedded.processes.proctree import kill_all, node_processes
from holdfast.faults.fault import Fault, FaultOptions, FaultRefused, FaultScope, FaultStep
from holdfast.faults.target import FaultTarget, TargetProcess
from holdfast.symptoms import Symptom


class Signal(FaultStep, frozen=True, kw_only=True, tag="signal"):
    process: TargetProcess
    number: int

    @property
    def lasts(self) -> bool:
        return False

    def do(self) -> None:
        if not self.process.signal(self.number):
            raise FaultRefused(f"process {self.process.pid} ended before the signal: try again")


class LastWords(FaultStep, frozen=True, kw_only=True, tag="last_words"):
    """Text that the process seems to write to its standard error, just before a signal ends it."""

    process: TargetProcess
    text: str

    @property
    def lasts(self) -> bool:
        return False

    def do(self) -> None:
        # The pipe or file itself is opened: what is written there is in no way different from the process's own output.
        with open(f"/proc/{self.process.pid}/fd/2", "ab", buffering=0) as errors:
            errors.write(self.text.encode())


class Freeze(FaultStep, frozen=True, kw_only=True, tag="freeze"):
    """SIGSTOP; undone by SIGCONT to the remaining processes."""

    processes: tuple[TargetProcess, ...]

    def do(self) -> None:
        if not [process for process in self.processes if process.signal(signal.SIGSTOP)]:
            raise FaultRefused("nothing is left of it to be stopped: try again")

    def undo(self) -> None:
        for process in self.processes:
            process.signal(signal.SIGCONT)


class LoseNode(FaultStep, frozen=True, kw_only=True, tag="lose_node"):
    """All processes of a node are killed together, and its agent stays off until it is powered on."""

    root: str
    node: str

    def do(self) -> None:
        try:
            ask(ClusterLayout(self.root), PowerOff(node=self.node))
        except (ControlRefused, NoCluster) as error:
            raise FaultRefused(str(error)) from error

    def undo(self) -> None:
        try:
            ask(ClusterLayout(self.root), PowerOn(node=self.node))
        except (ControlRefused, NoCluster):
            return  # The node is on, or the cluster is down and will start with all nodes.


class KillContainer(FaultStep, frozen=True, kw_only=True, tag="kill_container"):
    """All processes of a node are killed together; the supervisor restarts the agent, as kubelet does a container."""

    directory: str
    agent: TargetProcess | None

    @property
    def lasts(self) -> bool:
        return False

    def do(self) -> None:
        agent = self.agent.pid if self.agent and self.agent.is_alive else None
        kill_all(lambda: node_processes(Path(self.directory), agent))


class CrashOptions(FaultOptions, frozen=True, kw_only=True):
    signal: Literal["SEGV", "ABRT", "BUS", "ILL", "FPE"] = "SEGV"


CudaError = Literal["launch-failure", "illegal-access", "ecc"]
CUDA_ERRORS: dict[CudaError, tuple[Symptom, str]] = {
    "launch-failure": (Symptom.CUDA_ERROR, "unspecified launch failure"),
    "illegal-access": (Symptom.CUDA_ERROR, "an illegal memory access was encountered"),
    "ecc": (Symptom.GPU_MEMORY_ERROR, "uncorrectable ECC error encountered"),
}


class CudaErrorOptions(FaultOptions, frozen=True, kw_only=True):
    error: CudaError = "launch-failure"

    def symptom(self) -> Symptom:
        return CUDA_ERRORS[self.error][0]


def _cuda_error(aim: FaultTarget, options: CudaErrorOptions) -> tuple[FaultStep, ...]:
    """End a rank as a CUDA error does that a thread of torch meets: with the exception's text, by `std::terminate`."""
    process = _of_rank(aim)
    text = (
        "terminate called after throwing an instance of 'c10::AcceleratorError'\n"
        f"  what():  CUDA error: {CUDA_ERRORS[options.error][1]}\n"
        "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
        "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n\n"
    )
    return (LastWords(process=process, text=text), Signal(process=process, number=signal.SIGABRT))


def _kill_rank(aim: FaultTarget, _: FaultOptions) -> tuple[FaultStep, ...]:
    return (Signal(process=_of_rank(aim), number=signal.SIGKILL),)


def _crash_rank(aim: FaultTarget, options: CrashOptions) -> tuple[FaultStep, ...]:
    return (Signal(process=_of_rank(aim), number=signal.Signals[f"SIG{options.signal}"]),)


def _freeze_rank(aim: FaultTarget, _: FaultOptions) -> tuple[FaultStep, ...]:
    return (Freeze(processes=(_of_rank(aim),)),)


def _kill_worker(aim: FaultTarget, _: FaultOptions) -> tuple[FaultStep, ...]:
    rank = _of_rank(aim)
    workers = Path(f"/proc/{rank.pid}/task/{rank.pid}/children").read_text().split()
    alive = [process for pid in workers if (process := TargetProcess.of(int(pid))) is not None]
    if not alive:
        raise FaultRefused(f"rank process {rank.pid} has no child: its script uses no workers (num_workers=0)")
    return (Signal(process=alive[0], number=signal.SIGKILL),)


def _lose_node(aim: FaultTarget, _: FaultOptions) -> tuple[FaultStep, ...]:
    assert aim.node is not None
    return (LoseNode(root=str(aim.layout.root), node=aim.node),)


def _kill_container(aim: FaultTarget, _: FaultOptions) -> tuple[FaultStep, ...]:
    return (KillContainer(directory=str(aim.directory), agent=aim.agent),)


def _freeze_node(aim: FaultTarget, _: FaultOptions) -> tuple[FaultStep, ...]:
    return (Freeze(processes=aim.processes()),)


def _of_rank(aim: FaultTarget) -> TargetProcess:
    assert aim.rank is not None
    return aim.rank.process


FAULTS = (
    Fault("kill-rank", None, FaultScope.RANK, "SIGKILL to the rank's process", _kill_rank),
    Fault(
        "cuda-error",
        Symptom.CUDA_ERROR,
        FaultScope.RANK,
        "torch's text of a CUDA error in the rank's output, and the abort that follows it",
        _cuda_error,
        options=CudaErrorOptions,
    ),
    Fault(
        "crash-rank",
        None,
        FaultScope.RANK,
        "a deadly signal, as a library's crash ends a rank",
        _crash_rank,
        options=CrashOptions,
    ),
    Fault(
        "freeze-rank",
        Symptom.JOB_HANG,
        FaultScope.RANK,
        "SIGSTOP to the rank: its partners wait for it in their collectives",
        _freeze_rank,
        undo="SIGCONT",
    ),
    Fault("kill-worker", None, FaultScope.RANK, "SIGKILL to a data loader's worker of the rank", _kill_worker),
    Fault(
        "lose-node",
        Symptom.OS_KERNEL_PANIC,
        FaultScope.NODE,
        "agent, zygote, vault and ranks are killed together and stay off, as after a kernel panic",
        _lose_node,
        undo="the node is switched on (release it from the blocklist yourself)",
    ),
    Fault(
        "kill-container",
        Symptom.CONTAINER_ERROR,
        FaultScope.NODE,
        "agent, zygote, vault and ranks are killed together; the agent is restarted",
        _kill_container,
    ),
    Fault(
        "freeze-node",
        Symptom.JOB_HANG,
        FaultScope.NODE,
        "SIGSTOP to all processes of the node, its agent's included",
        _freeze_node,
        undo="SIGCONT",
    ),
)
