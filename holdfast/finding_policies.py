"""What can be set of findings, a struct for each section of `holdfast.toml`: when something counts as found. Pure."""

from __future__ import annotations

import msgspec

from holdfast.desired import TEST_S_MAX, TRANSFER_BYTES_MAX
from holdfast.policies import SETTLED_S_MAX
from holdfast.ranges import require_within


class CorruptionPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What losses and gradient norms say of the training's health: when a step is clean, and when it is spoiled."""

    certified_after_steps: int = 10
    """Clean steps that must follow before what was before them counts as clean."""

    jump_factor: float = 5.0
    """How many times above its running level a number is a sign of corruption."""

    loss_jump_steps: int = 3
    """Steps that a loss must stay there to be a fault; one that is not finite is a fault at once."""

    grad_norm_steps: int = 10
    """Steps that a gradient norm must be that high or not finite to be a fault: loss scaling overflows now and then."""

    def __post_init__(self) -> None:
        require_within(
            self,
            certified_after_steps=(1, 1_000_000),
            jump_factor=(1.01, 1e6, "numbers move around their level"),
            loss_jump_steps=(1, 1_000_000),
            grad_norm_steps=(1, 1_000_000),
        )


class TelemetryPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is measured of ranks beside training, and when it counts as an anomaly (TRANSOM §IV-B). It evicts nobody."""

    every_s: float = 5.0
    """How often agents measure; 0: not at all. A model is good for the interval that it was trained with."""

    window: int = 24
    """Measurements that are looked at together."""

    length: int = 6
    """The newest of them, which are judged."""

    level_after: int = 24
    """Measurements of a generation that say what is usual for the job; until then it is not judged."""

    error_window_s: float = 60.0
    """Lines of trouble are counted over this long."""

    error_lines_max: int = 20
    """More of them are an anomaly."""

    again_after_s: float = 300.0
    """The same anomaly of a job is said again after this long."""

    retrain_every_s: float = 86400.0
    """How often the historian learns a new model from what it has recorded; 0: never."""

    learn_from_s: float = 172800.0
    """How far back it looks for that."""

    def __post_init__(self) -> None:
        require_within(
            self,
            every_s=(0, 3600.0),
            window=(8, 10_000),
            length=(2, 1000),
            level_after=(2, 10_000),
            error_window_s=(1, 86400.0),
            error_lines_max=(0, 1_000_000),
            again_after_s=(1, SETTLED_S_MAX),
            retrain_every_s=(0, 365 * 86400.0),
            learn_from_s=(60, 365 * 86400.0),
        )
        if 2 * self.length > self.window:
            raise ValueError(f"length = {self.length}: at most half of window = {self.window}")


class HangPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long a job may make no progress until it is looked at, phase by phase, and what is made of it."""

    step_multiple: float = 10.0
    """Times the longest of its last steps (P99) that a job may note nothing at all: no step, phase or collective."""

    floor_s: float = 5.0
    """But no less: a short step is no reason to look at every pause."""

    waiting_multiple: float = 5.0
    """The same where some ranks wait in a collective and others are not in it: that tells more."""

    waiting_floor_s: float = 3.0

    start_s: float = 450.0
    """Nothing noted before a job's very first step, or while it restores; half of what it is given at most
    (`[timeouts] first_step_s`, which names nobody)."""

    start_waiting_s: float = 120.0
    """The same where some ranks wait for others that have not come: these may download data or compile."""

    restart_s: float = 30.0
    """Nothing noted before the first step of a job whose pace is known; and `step_multiple` steps. Half of
    `[timeouts] first_step_min_s`."""

    restart_waiting_s: float = 15.0
    """The same where some ranks wait for others that have not come; and `waiting_multiple` steps."""

    checkpoint_s: float = 600.0
    """Nothing noted in a phase `checkpoint`."""

    eval_s: float = 1800.0
    """Nothing noted in a phase `eval`."""

    held_s: float = 300.0
    """Nothing noted while training is held for tests."""

    phase_s: float = 600.0
    """Nothing noted in a phase that the script has named itself."""

    learned_multiple: float = 3.0
    """Such a phase gets this many times the longest that it has taken so far, if that is less."""

    working_s: float = 600.0
    """A rank that computes, reads or writes while others wait for it may do so for this long: nobody has said what it
    does. Also: steps may be this long in coming though collectives go on."""

    unnamed_s: float = 30.0
    """So long the ranks may stand still with none of them waiting for another: they may wait for data, or for whoever
    has stopped them on purpose."""

    working_cpu_share: float = 0.05
    """Share of a core from which a process counts as working."""

    working_bytes_per_s: float = 65536.0
    """Bytes that it reads and writes a second from which it does as well."""

    answer_s: float = 3.0
    """Nodes that have not answered a request for traces by then are judged without."""

    evict_confidence_min: float = 0.7
    """Suspects that are named with less are not evicted."""

    group_confidence_min: float = 0.5
    """The same of several of which one is at fault: they go only when they hang again and checks have found nothing."""

    suspects_max: int = 4
    """Nor are more machines than this at once: so large a group is restarted first."""

    def __post_init__(self) -> None:
        require_within(
            self,
            step_multiple=(2, 10_000, "steps are not all alike"),
            floor_s=(1, 86400.0, "agents tell once a second"),
            waiting_multiple=(2, 10_000, "steps are not all alike"),
            waiting_floor_s=(1, 86400.0, "agents tell once a second"),
            start_s=(1, SETTLED_S_MAX),
            start_waiting_s=(1, SETTLED_S_MAX),
            restart_s=(1, SETTLED_S_MAX),
            restart_waiting_s=(1, SETTLED_S_MAX),
            checkpoint_s=(1, SETTLED_S_MAX),
            eval_s=(1, SETTLED_S_MAX),
            held_s=(1, SETTLED_S_MAX),
            phase_s=(1, SETTLED_S_MAX),
            learned_multiple=(1.1, 1000),
            working_s=(1, SETTLED_S_MAX),
            unnamed_s=(1, SETTLED_S_MAX),
            working_cpu_share=(0.0, 1000),
            working_bytes_per_s=(0, 1e15),
            answer_s=(0.1, 600),
            evict_confidence_min=(0.0, 1.0),
            group_confidence_min=(0.0, 1.0),
            suspects_max=(0, 1_000_000),
        )


class SlowPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a job counts as slow, and how the machine at fault is found."""

    slower_by: float = 0.1
    """Share by which iterations must get longer, and stay so (GREYHOUND: a tenth)."""

    locate: bool = True
    """Whether all nodes are asked how their ranks spend their time, once a job got slow."""

    test: bool = True
    """Whether training is then held for a moment and suspects are tested; `holdfast slow --test` does it by hand."""

    answer_s: float = 2.0
    """Nodes that have not answered by then are judged without."""

    ahead_s: float = 0.3
    """A hold is asked for so long before it begins: by then every node has heard of it."""

    compute_s: float = 0.5
    """Seconds that suspects multiply matrices."""

    pass_s: float = 0.25
    """Seconds for each pass of transfers between nodes; what takes longer counts as that long."""

    transfer_bytes: int = 8 << 20
    """Bytes of each transfer."""

    compute_slower_by: float = 0.25
    """Share by which matrix products take longer on a slow rank than on others."""

    links_slower_by: float = 1.0
    """The same of transfers on a slow link: the shortest of a few differ by more, on a network that others use."""

    vote: bool = True
    """Whether stacks are taken in rounds where collectives and tests name nobody, and the job is still slow."""

    vote_every_s: float = 10.0
    """From one round to the next (ByteRobust §5)."""

    vote_rounds: int = 5
    """Rounds after which the group that was flagged in most of them is named (ByteRobust §5)."""

    def __post_init__(self) -> None:
        require_within(
            self,
            slower_by=(0.01, 10.0, "iterations are not all alike"),
            answer_s=(0.1, 600),
            ahead_s=(0.05, 600, "a word needs time to be heard"),
            compute_s=(0.01, TEST_S_MAX),
            pass_s=(0.01, TEST_S_MAX),
            transfer_bytes=(1, TRANSFER_BYTES_MAX),
            compute_slower_by=(0.01, 100.0),
            links_slower_by=(0.01, 100.0),
            vote_every_s=(0.1, 3600, "a round takes a second"),
            vote_rounds=(1, 100),
        )


class SignalsPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is looked at beside training: its logs, and its pace."""

    read_training_logs: bool = True
    """Whether agents read the TensorBoard and W&B files that ranks write."""

    peak_flops: float = 0.0
    """What the device of one rank does a second at most; 0: as the script says, or as its name tells."""

    decline_ratio: float = 0.8
    """A job that trains at this share of its usual pace, or below, has declined."""

    decline_steps: int = 50
    """Steps of which a pace is the median; it has to stay low for twice as many."""

    decline_warm_up_steps: int = 20
    """Steps of each start that say nothing of the pace."""

    def __post_init__(self) -> None:
        require_within(
            self,
            peak_flops=(0, 1e21),
            decline_ratio=(0.01, 0.99, "1 is the usual pace itself"),
            decline_steps=(5, 1_000_000),
            decline_warm_up_steps=(1, 1_000_000, "the first step of a start pays for connections"),
        )
