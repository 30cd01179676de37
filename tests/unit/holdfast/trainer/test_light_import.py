"""A user's script that imports the trainer library pays for nothing that it does not use."""

import subprocess
import sys

PROGRAM = """
import holdfast.trainer
import holdfast.events
print(holdfast.events._decoder.cache_info().currsize)
"""


def test_importing_the_trainer_builds_no_decoder_of_events() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "0"


CHECKPOINTS = """
import sys
import holdfast.trainer.checkpoint.checkpointer
print([name for name in sys.modules if name.startswith("holdfast.trainer.device.")])
"""


def test_checkpoints_load_what_an_accelerator_needs_only_where_there_is_one() -> None:
    done = subprocess.run([sys.executable, "-c", CHECKPOINTS], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


def test_the_integrations_load_no_framework_and_no_torch() -> None:
    # What any of them needs is loaded when a framework begins to train.
    script = (
        "import sys; from holdfast.trainer.integrations import HoldfastCallback, keep; "
        "assert not {'torch', 'transformers', 'lightning', 'accelerate'} & set(sys.modules), sorted(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
