"""A user's script that imports the trainer library pays for no event decoders."""

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
