"""Conclusions drawn from facts; they change nothing by themselves."""

from __future__ import annotations

from typing import Literal

from holdfast.event_parts import Count, Moment, Name, Step
from holdfast.events.base import Finding


class NodeLost(Finding, frozen=True, kw_only=True, omit_defaults=True):
    """Nothing was heard of a node for too long, while others were heard on the same bus.

    `epoch` is the node's at its loss: a later hand-over of the node is not meant.
    """

    last_heard_at: Moment
    silent_s: float
    epoch: Count = 0


class StepTimeMeasured(Finding, frozen=True, kw_only=True, omit_defaults=True):
    """What a step of this job takes now; limits adapt to it."""

    median_s: float
    p99_s: float
    samples: Count


class ThroughputMeasured(Finding, frozen=True, kw_only=True, omit_defaults=True):
    """How fast the job trains now, by the medians of its last steps. Said every ten seconds at most.

    `tokens_per_s` is that of the whole job, `mfu` a share of 1; None: nobody told what it takes to know. `is_logged`:
    both are as a training log has them.
    """

    step: Step
    step_s: float
    tokens_per_s: float | None = None
    mfu: float | None = None
    is_logged: bool = False


class MfuDeclined(Finding, frozen=True, kw_only=True, omit_defaults=True):
    """The job trains markedly slower than it did, since `since_step` and for many steps: `share_left` of its pace."""

    step: Step
    since_step: Step
    share_left: float
    step_s: float
    tokens_per_s: float | None = None
    mfu: float | None = None
    symptom: str = ""


class DeadlinePassed(Finding, frozen=True, kw_only=True, omit_defaults=True):
    """Something that had to happen did not happen in time."""

    awaited: str
    waited_s: float
    missing_nodes: tuple[Name, ...] = ()


class StepRestorable(Finding, frozen=True, kw_only=True, omit_defaults=True):
    """Every shard of a checkpoint of this step is in place."""

    step: Step
    path: str
    checkpoint_bytes: Count


class BadNumber(Finding, frozen=True, kw_only=True, omit_defaults=True):
    """A loss or gradient norm shows that the training is spoiled since `step`, or since the step before.

    `kind` is what is wrong with `quantity`. `value` is None where it is not finite; `level` is what was usual.
    `certified` is the newest step known to be clean; None: none is. `told_by`: the training log that says so, under
    `tag` at its `logged_step`; "": the script's own word by the library. A log may say it some steps late.
    """

    step: Step
    quantity: Literal["loss", "grad_norm"]
    kind: Literal["nan", "inf", "jump"]
    rank: Count | None = None
    value: float | None = None
    level: float | None = None
    certified: Step | None = None
    told_by: Literal["", "tensorboard", "wandb"] = ""
    tag: str = ""
    logged_step: int | None = None


class StepsCertified(Finding, frozen=True, kw_only=True, omit_defaults=True):
    """Up to `step` all is known to be clean, by what followed. `newest_step` is the newest that all ranks completed.

    Said every two seconds at most. It is lower than before when a generation went back.
    """

    step: Step
    newest_step: Step
