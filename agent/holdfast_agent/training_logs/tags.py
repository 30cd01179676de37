"""Tag names of loss, gradient norm, throughput and others, as trainers write them. Pure.

Only exact names count: a wrong loss would end a sound training. Evaluation losses are excluded. Users add other names
with `holdfast run --tag loss=my/loss`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from holdfast.events.parts.training_quantities import Quantity

PERCENT_FROM = 1.5
"""MFU never exceeds 150 %: larger values are percentages."""

KNOWN: dict[Quantity, tuple[str, ...]] = {
    # For each quantity the first name that a log has counts. Spelled as by `_canonical`.
    "loss": (
        "lm_loss",  # Megatron-LM ("lm loss")
        "loss_metrics/global_avg_loss",  # torchtitan
        "reduced_train_loss",  # NeMo
        "train/ce_loss",  # OLMo-core ("train/CE loss")
        "train/crossentropyloss",  # OLMo
        "loss/train/total",  # Composer, LLM Foundry
        "train/samples/train_loss",  # DeepSpeed
        "train/loss",  # Hugging Face Trainer, nanoGPT
        "train/loss_step",  # Lightning
        "train_loss_step",
        "train_loss",
        "train/lm_loss",
        "train/total_loss",
        "training/loss",
        "training_loss",
        "loss/train",
        "loss",
    ),
    "grad_norm": (
        "grad_norm",  # Megatron-LM ("grad-norm"), torchtitan, NeMo
        "train/grad_norm",  # Hugging Face Trainer
        "optim/total_grad_norm",  # OLMo
        "l2_norm/grad/global",  # Composer
        "train/gradient_norm",
        "gradient_norm",
        "train/gnorm",
        "gnorm",  # fairseq
    ),
    "tokens_per_s": (
        "throughput/total/tokens_per_second",
        "throughput/tokens_per_sec",  # Composer
        "tokens_per_second",
        "tokens_per_sec",
        "tokens/s",
        "tokens/sec",
        "train/tokens_per_second",
        "train/tokens_per_sec",
        "train_tokens_per_second",
    ),
    "mfu": (
        "mfu",  # nanoGPT
        "mfu(%)",  # torchtitan
        "train/mfu",
        "throughput/device/mfu",  # Composer, OLMo-core
        "throughput/mfu",
        "perf/mfu",
    ),
    "learning_rate": (
        "learning_rate",  # Megatron-LM ("learning-rate")
        "train/learning_rate",  # Hugging Face Trainer
        "lr",
        "train/lr",
        "train/samples/lr",  # DeepSpeed
        "optim/learning_rate_group0",  # OLMo
    ),
}

_OF_EVALUATION = re.compile(r"(?:^|[^a-z])(?:eval|evaluation|val|valid|validation|test|dev)(?:[^a-z]|$)")
_FOLDER_OF_EVALUATION = re.compile(r"(?:^|[^a-z])(?:eval|evaluation|val|valid|validation)(?:[^a-z]|$)")


class TagChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The quantity of a tag; a lower `place` is a better name for it."""

    quantity: Quantity
    place: int


class Tags:
    """The names for one job's logs: the user's before the known ones."""

    def __init__(self, named: Mapping[Quantity, str] | None = None) -> None:
        self._choices: dict[str, TagChoice] = {}
        self._named = {tag: TagChoice(quantity=quantity, place=-1) for quantity, tag in (named or {}).items()}
        # A user's name for a quantity excludes all others.
        for quantity, tags in KNOWN.items():
            if quantity not in (named or {}):
                self._choices |= {tag: TagChoice(quantity=quantity, place=place) for place, tag in enumerate(tags)}

    def choice(self, tag: str, folder: str = "") -> TagChoice | None:
        """Return a tag's quantity; None: not the training's. Logs with equal tags for evaluation differ by `folder`."""
        if (own := self._named.get(tag)) is not None:
            return own
        if _OF_EVALUATION.search(tag.lower()) or _FOLDER_OF_EVALUATION.search(folder.lower()):
            return None
        return self._choices.get(_canonical(tag))


def value_of(quantity: Quantity, value: float) -> float:
    """Return the value in the unit that is stored: MFU as a fraction."""
    return value / 100 if quantity == "mfu" and value > PERCENT_FROM else value


def _canonical(tag: str) -> str:
    # W&B flattens dictionaries to `train.loss`.
    return re.sub(r"[\s-]+", "_", tag.strip().lower()).replace(".", "/")
