"""Checkpoints of `torch.save` and others that are answered from memory, and reach the disk afterwards (ADR 49).

`import holdfast.trainer.memory_checkpoints` or `holdfast run --memory-checkpoints` switches it on.
"""
