"""The flags of torchrun: one table for the parser, the help, the lines at the start and `docs/torchrun.md`."""

from __future__ import annotations

from typing import Literal

import msgspec

from holdfast.events.parts.launch import SIGNALS


class Flag(msgspec.Struct, frozen=True, kw_only=True):
    """A flag of torchrun. A variable PET_NAME gives its default, where torchrun reads one."""

    name: str
    short: str = ""
    kind: Literal["text", "whole", "number", "switch"] = "text"
    default: str | int | float | None = None
    choices: tuple[str, ...] = ()
    reads_environment: bool = True
    metavar: str = ""
    meaning: str
    """Effect of the flag; for a flag with `instead`, its effect under torchrun."""
    instead: str = ""
    """Replacement that Holdfast has for the flag; printed at the start of a run that gives it."""

    @property
    def parameter(self) -> str:
        return self.name.replace("-", "_")

    @property
    def variable(self) -> str:
        return f"PET_{self.parameter.upper()}"


_RENDEZVOUS = "nodes meet over the cluster's bus: the controller chooses them, and the address and port of rank 0"

FLAGS = (
    Flag(
        name="nnodes",
        default="1",
        metavar="N|MIN:MAX",
        meaning="Nodes to run on. MIN:MAX: as many as there are; fewer after a loss, more at a later restart.",
    ),
    Flag(
        name="nproc-per-node",
        default="1",
        metavar="N|gpu|cpu|auto",
        meaning="Ranks on each node. gpu, xpu, cpu, auto: as many as this machine has devices.",
    ),
    Flag(name="rdzv-backend", default="static", meaning="Rendezvous backend.", instead=_RENDEZVOUS),
    Flag(name="rdzv-endpoint", default="", meaning="Rendezvous endpoint.", instead=_RENDEZVOUS),
    Flag(name="rdzv-id", default="none", meaning="The run's id: TORCHELASTIC_RUN_ID, and in names of log directories."),
    Flag(
        name="rdzv-conf",
        default="",
        meaning="Rendezvous configuration; last_call_timeout=N: seconds to wait for more than the minimum of nodes.",
        instead="only last_call_timeout counts",
    ),
    Flag(
        name="standalone",
        kind="switch",
        meaning="Run on this machine, on a cluster that is started for this run and ends with it.",
    ),
    Flag(
        name="max-restarts",
        kind="whole",
        default=0,
        meaning="The job ends rather than restart more often for failures. Without it, Holdfast restarts as long as"
        " that helps.",
    ),
    Flag(
        name="monitor-interval",
        kind="number",
        default=0.1,
        meaning="Interval of looks at the ranks.",
        instead="agents learn of a rank's end at once",
    ),
    Flag(
        name="start-method",
        default="spawn",
        choices=("spawn", "fork", "forkserver"),
        meaning="How processes of functions are started; no effect on scripts.",
        instead="ranks are forked from a process that has imported torch, or executed with --start exec",
    ),
    Flag(
        name="event-log-handler",
        default="null",
        meaning="Handler of the launcher's events.",
        instead="every event is recorded: `holdfast incidents`, `holdfast sql`",
    ),
    Flag(name="role", default="default", meaning="Role of the ranks: ROLE_NAME, and the prefix of their lines."),
    Flag(name="module", short="m", kind="switch", meaning="SCRIPT is a module, as in python -m."),
    Flag(name="no-python", kind="switch", meaning="SCRIPT is a program: it is run without Python."),
    Flag(
        name="run-path",
        kind="switch",
        meaning="Run SCRIPT, an absolute path, within the process of its rank. Holdfast does so with every script.",
    ),
    Flag(name="log-dir", metavar="DIR", meaning="Directory for the files of --redirects and --tee."),
    Flag(
        name="redirects",
        short="r",
        default="0",
        metavar="0-3|RANK:0-3,...",
        meaning="Write streams (1: stdout, 2: stderr, 3: both) to files below --log-dir, and do not show them.",
    ),
    Flag(
        name="tee",
        short="t",
        default="0",
        metavar="0-3|RANK:0-3,...",
        meaning="Write streams to files below --log-dir and show them, with role and local rank before each line.",
    ),
    Flag(
        name="local-ranks-filter",
        default="",
        metavar="RANK,...",
        meaning="Show the output of these local ranks of every node. Default: the job's rank 0.",
    ),
    Flag(
        name="duplicate-stdout-filters",
        default="",
        meaning="Copy the lines of stdout that contain one of these texts to a file.",
        instead="no filtered file is written: `holdfast logs JOB --rank N` prints all lines",
    ),
    Flag(
        name="duplicate-stderr-filters",
        default="",
        meaning="The same for stderr.",
        instead="no filtered file is written: `holdfast logs JOB --rank N` prints all lines",
    ),
    Flag(
        name="node-rank",
        kind="whole",
        default=0,
        meaning="Rank of this node.",
        instead="one command starts the job on all nodes, and the controller numbers them",
    ),
    Flag(name="master-addr", default="127.0.0.1", meaning="Address of rank 0.", instead=_RENDEZVOUS),
    Flag(name="master-port", kind="whole", meaning="Port of rank 0.", instead=_RENDEZVOUS),
    Flag(
        name="local-addr",
        meaning="Address of this node.",
        instead="each agent knows the address of its node: `--address` of the agent",
    ),
    Flag(
        name="logs-specs",
        reads_environment=False,
        meaning="Plugin that decides where logs go.",
        instead="the plugin is not used: --log-dir, --tee and --redirects decide",
    ),
    Flag(
        name="numa-binding",
        choices=("node", "socket", "exclusive", "core-complex"),
        reads_environment=False,
        meaning="Bind each rank to the processors near its GPU: those of its NUMA node, of its socket, its share of the"
        " cores, or one group of cores with a common cache.",
    ),
    Flag(
        name="signals-to-handle",
        default=SIGNALS,
        meaning="Signals that end the ranks with the launcher; TORCHELASTIC_SIGNALS_TO_HANDLE.",
        instead="ranks get the variable; SIGINT and SIGTERM of this command stop the job, other signals only end the"
        " command",
    ),
    Flag(
        name="shutdown-timeout",
        kind="whole",
        meaning="Seconds from SIGTERM to SIGKILL.",
        instead="the setting [timeouts] stop_grace_s of the nodes decides",
    ),
    Flag(
        name="virtual-local-rank",
        kind="switch",
        meaning="Each rank sees its own GPU only: LOCAL_RANK is 0, and CUDA_VISIBLE_DEVICES has one entry.",
    ),
)
"""All flags, in torchrun's order. `tests/unit/holdfast/cli/torchrun` compares them with torchrun's own parser."""
