"""A scenario: what there is, and what goes wrong with which rate. Pure data with ranges.

Rates are per day and place; a place is a machine, a rack, a job or the whole cluster. Fields say the unit last.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from holdfast.settings import Section, Within

Effect = Literal["crash", "hang", "slow", "bad_numbers", "lost", "drained", "alert", "drift", "pause", "silence"]
"""What a fault does to a job: a rank ends; no step follows; steps take longer; the state is spoiled; the machines are
away; people shut their agents down; nothing but an alert of an inspection; use of resources drifts; no step follows for
a while, and nothing is wrong (a script writes); no message of any machine arrives for a while, and then all do (with
`form = "asleep"`: as the services stood still)."""

ABSENCES: frozenset[Effect] = frozenset({"lost", "drained"})

Place = Literal["machine", "rack", "switch", "power", "job", "cluster"]
"""`switch` and `power`: the machines of one switch, or of one feed, which are other ones than those of a rack."""

Lasts = Literal["moment", "while", "repair"]
"""`moment`: it happens once. `while`: for `lasts_h`. `repair`: until the machine was taken out and repaired."""

Share = Annotated[float, Within(0.0, 1.0)]
Hours = Annotated[float, Within(0.0, 10_000.0)]
Seconds = Annotated[float, Within(0.0, 7 * 86400.0)]


class MachineClass(Section, frozen=True, kw_only=True):
    """Machines of one kind, named `<name>-<number>`."""

    name: str
    count: Annotated[int, Within(1, 100_000)]
    per_rack: Annotated[int, Within(1, 100_000)] = 8
    are_racks_hosts: bool = False
    """The machines of a rack are nodes of one host, and share its processors."""
    per_switch: Annotated[int, Within(0, 100_000)] = 0
    """Machines of one switch, `<name>-switch-<number>`; 0: no switch is known."""
    per_feed: Annotated[int, Within(0, 100_000)] = 0
    """Machines of one feed of power, `<name>-power-<number>`."""
    ranks_max: Annotated[int, Within(0, 64)] = 0
    """Ranks that have a GPU there: a job with more fails on it; 0: as many as there are."""


class JobPlan(Section, frozen=True, kw_only=True):
    """A training job, and how long its phases take."""

    name: str
    nodes: Annotated[int, Within(1, 100_000)]
    ranks_per_node: Annotated[int, Within(1, 64)] = 1
    mesh: str = ""
    """Its parallel groups, as `pp=2,dp=4,tp=2`; "": its ranks are data-parallel."""
    step_s: Annotated[float, Within(0.01, 3600.0)] = 5.0
    steps: Annotated[int, Within(0, 1_000_000_000)] = 0
    """Length of the training; 0: it trains until the simulation ends."""
    keeps: Literal["memory", "disk", "nothing"] = "memory"
    """Place of its checkpoints. `memory`: with copies as the ckpt coordinator orders, besides those on the disk.
    `nothing`: each start begins from scratch."""
    disk_every_s: Annotated[float, Within(1.0, 86400.0)] = 600.0
    copy_s: Annotated[float, Within(0.0, 3600.0)] = 1.0
    """Time that a step takes to another machine's memory, back from there, or to the disk."""
    fork_s: Seconds = 2.0
    """From an order to running ranks."""
    first_step_s: Seconds = 20.0
    """From running ranks to the first step: connect, restore, warm up."""
    stop_s: Seconds = 1.0
    version: str = ""
    """Version of its code at first; "": its script has no versions."""
    submitted_at_h: Hours = 0.0
    stopped_at_h: Hours = 0.0
    """People stop it then, for it was a mistake: it may be larger than the cluster; 0: never."""
    beyond_oracle_s: Seconds | None = None
    """Time that right decisions lose beyond the oracle, at most, without waiting for machines: measured on many seeds.
    None: the bound is a multiple of what the oracle loses."""

    @property
    def restart_s(self) -> float:
        """Time of a restart, from the order to the first step."""
        return self.stop_s + self.fork_s + self.first_step_s


class AlertPlan(Section, frozen=True, kw_only=True):
    """The alert that inspections raise for a fault."""

    confidence: Literal["evict", "tolerate", "hint"]
    check: str
    symptom: str
    device: str = ""
    shared: str = ""
    """What nodes share, if the alert is about that."""
    chance: Share = 1.0
    """Share of the faults that raise it."""
    after_s: Seconds = 10.0
    again_s: Seconds = 0.0
    """Interval at which it is raised again while the fault lasts; 0: once."""


class Naming(Section, frozen=True, kw_only=True):
    """Machines that the model of the analyzer names for a hang or slowness. The rest of the shares names none."""

    machine: Share = 0.7
    """The machine at fault alone."""
    group: Share = 0.15
    """The machine at fault among `group_size`."""
    wrong: Share = 0.0
    """Another machine."""
    group_size: Annotated[int, Within(2, 64)] = 2
    is_certain: Share = 0.5
    """Of the hangs that name a machine: a process is stopped, stuck or unreadable."""
    is_convincing: Share = 0.0
    """Share of the hangs that name a group in which it stands apart from all other ranks, and may be evicted whole."""


class FaultKind(Section, frozen=True, kw_only=True):
    """A kind of fault."""

    name: str
    effect: Effect
    place: Place = "machine"
    of: str = ""
    """Class of machines, or job, that has it; "": all."""
    per_day: Annotated[float, Within(0.0, 10_000.0)] = 0.0
    """Rate at each place."""
    rates: dict[str, float] = msgspec.field(default_factory=dict)
    """Rate for single classes of machines, in place of `per_day`."""
    over_ranks: Annotated[int, Within(0, 64)] = 0
    """It shows only in jobs with more ranks for each node than this."""
    lasts: Lasts = "moment"
    lasts_h: Hours = 1.0
    """Mean duration if it lasts a while."""
    again_h: Hours = 1.0
    """Mean training time until it shows again, while it lasts; 0: at each start."""
    prints: str = ""
    """How a rank ends by it (`last_words.py`)."""
    at_start: bool = False
    """Of a crash: it shows as soon as the ranks of its machine run, and not while they train."""
    same_step: bool = False
    """A fault of code or data: it shows whenever the job reaches the same step."""
    version: str = ""
    """Version of its job's code that has this bug; it is there whenever that version runs."""
    slowdown: Annotated[float, Within(1.0, 100.0)] = 1.5
    is_busy: bool = False
    """Of slowness, for the production analyzer: other processes keep the machine busy, so orders reach its agent late.
    """
    form: str = ""
    """Form of a hang (`deadlock in user code`, `link cut`, ...), of slowness (`link`, `hidden`, `crowded`; "": a
    machine that computes slowly) or of bad numbers (`loss nan`, `norm jump`, ...), for the production analyzer; "": by
    chance."""
    shows_after_steps: Annotated[int, Within(0, 10)] = 0
    """Steps from a spoiled state until numbers show it, for the production analyzer."""
    is_silent: bool = False
    """True for bad numbers that spoil the state without any number that shows it. Checks and replays may find the
    machine."""
    alert: AlertPlan | None = None
    alert_share: Share = 1.0
    """Share of the machines of its place that raise the alert."""
    found_by_checks: Share = 0.8
    """Chance that stop-time checks find it in one run."""
    found_by_replay: Share = 0.9
    """Chance that a group with the machine computes something else in one phase of a replay: bad numbers."""
    warm_up: Literal["", "paths", "sockets", "devices", "silent"] = ""
    """The test of a warm-up that fails on its machines; `silent`: their warm-up never answers; "": it shows nothing."""
    found_after_s: Seconds = 30.0
    """From the effect to the analyzer's finding: a hang, slowness or bad numbers."""
    naming: Naming = Naming()
    is_false: bool = False
    """Nothing is wrong: an inspection is."""

    @property
    def shows_in_numbers(self) -> bool:
        return self.effect == "bad_numbers" and not self.is_silent


class Strike(Section, frozen=True, kw_only=True):
    """A fault at a set time, for scenarios that tell one story. If it lasts a while, then exactly `lasts_h`."""

    kind: str
    at_h: Hours
    place: str = ""
    """Name of the machine, rack or job; "": by chance."""


class Update(Section, frozen=True, kw_only=True):
    """An operator wants another version of a job's code to run."""

    job: str
    at_h: Hours
    version: str = ""
    """"": back to the last good one."""
    is_urgent: bool = False
    """At once; otherwise with the next failure."""
    within_h: Hours = 24.0
    """In any case within this time."""


class Release(Section, frozen=True, kw_only=True):
    """An operator takes a machine off the blocklist, whatever is wrong with it."""

    machine: str
    at_h: Hours


class Repairs(Section, frozen=True, kw_only=True):
    """Time from taking a machine out to its return: lognormal. Median and spread of a fleet of 400 servers."""

    median_h: Annotated[float, Within(0.01, 10_000.0)] = 20.0
    sigma: Annotated[float, Within(0.0, 4.0)] = 2.0


class ChaosPlan(Section, frozen=True, kw_only=True):
    """What happens to messages and services beside the faults. Judgement must not depend on it."""

    late: Share = 0.05
    """Share of messages that take up to `late_s`, and are overtaken by others."""
    late_s: Seconds = 5.0
    overtaking: bool = False
    """Messages of one sender overtake each other as well, as they do when one is delivered again."""
    repeated: Share = 0.05
    """Share of messages that are delivered twice."""
    crashes: Share = 0.002
    """Chance that a service dies after it handled a message: before it publishes what follows, or acknowledges it."""
    outages_per_day: Annotated[float, Within(0.0, 1000.0)] = 2.0
    """Of the bus, a minute at most each."""
    forgets_s: Seconds = 10.0
    """The bus comes back without what it stored up to so long before, though it had acknowledged that. A machine that
    loses power loses the same of its disk; what was written in part counts as not written."""


class Scenario(Section, frozen=True, kw_only=True):
    """Everything that a simulation starts with, besides its seed."""

    title: str
    days: Annotated[float, Within(0.001, 3650.0)]
    machines: tuple[MachineClass, ...]
    jobs: tuple[JobPlan, ...]
    faults: tuple[FaultKind, ...]
    strikes: tuple[Strike, ...] = ()
    updates: tuple[Update, ...] = ()
    releases: tuple[Release, ...] = ()
    repairs: Repairs = Repairs()
    analyzer: Literal["model", "engines"] = "model"
    """`engines`: the production analyzer, with evidence of each fault. `model`, for thousands of machines: findings
    after `found_after_s`, with the shares of `naming`."""
    resubmitted_after_h: Hours = 2.0
    """Time until people notice that a job ended, and submit it again."""
    cascade_share: Share = 0.5
    """Share of crashes after which other ranks report the loss of their peer, perhaps first."""

    chaos: ChaosPlan | None = None

    known_wrong: dict[str, str] = msgspec.field(default_factory=dict)
    """Complaints about today's policy in this scenario, by kind, each with the reason why it is there. A test demands
    exactly these: the first change that mends one takes it out here."""

    def kind(self, name: str) -> FaultKind:
        return next(kind for kind in self.faults if kind.name == name)
