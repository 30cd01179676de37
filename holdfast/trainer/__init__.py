"""The library that a training script may import. Outside Holdfast every call does nothing.

A script needs none of it: hooks on optimizers and on torch.distributed fill the rank's ledger. With one call a step,
`holdfast.trainer.step(loss=...)`, the record is exact.
"""

from holdfast.trainer.dcp import storage_reader, storage_writer
from holdfast.trainer.model import describe_model
from holdfast.trainer.phases import phase, step
from holdfast.trainer.replay_run import replay
from holdfast.trainer.report import checkpoint_saved, report

__all__ = [
    "checkpoint_saved",
    "describe_model",
    "phase",
    "replay",
    "report",
    "step",
    "storage_reader",
    "storage_writer",
]
