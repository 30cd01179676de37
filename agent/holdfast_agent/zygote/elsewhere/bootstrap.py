"""The start of Holdfast in an interpreter whose environment may have none."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from holdfast_agent.zygote.wire import RankPlan

# Python of any version runs it. Packages of its own environment go before those of the library, except Holdfast itself,
# whose files both sides read; the first entry is replaced by the script's directory later.
_PROGRAM = """
import sys
library, version, program = sys.argv[1:4]
sys.argv[:4] = ["-c"]
try:
    if sys.version_info < (3, 11):
        raise ImportError("it is older than Python 3.11")
    sys.path[0] = library
    import holdfast, holdfast_agent, importlib
    del sys.path[0]
    sys.path.append(library)
    main = importlib.import_module(program).main
    sys.path.insert(0, "")
except ImportError as error:
    sys.stderr.write(
        "holdfast: %s cannot run a rank: %s. The library of its node is for Python %s: install holdfast in this "
        "environment too, or choose another with --python (--python node: that of the nodes)\\n"
        % (sys.executable, error, version)
    )
    sys.exit(70)
main(sys.argv[1:])
"""


def start_program(plan: RankPlan, program: str, arguments: Sequence[str]) -> tuple[str, ...]:
    """Return the command that runs this module of Holdfast with the rank's interpreter."""
    if not plan.python:
        return (sys.executable, "-u", "-P", "-m", program, *arguments)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    return (plan.python, "-u", "-c", _PROGRAM, plan.library, version, program, *arguments)
