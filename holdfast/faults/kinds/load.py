"""An overloaded machine: processes that burn its cores."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from holdfast.faults import cgroups
from holdfast.faults.fault import Fault, FaultOptions, FaultRefused, FaultScope, FaultStep
from holdfast.faults.helpers import READY, Helper
from holdfast.faults.target import FaultTarget
from holdfast.symptoms import Symptom

BURNERS_MAX = 4096


class OverloadOptions(FaultOptions, frozen=True, kw_only=True):
    """`burners`: processes for each core."""

    burners: int = 4


def _overload(aim: FaultTarget, options: OverloadOptions) -> tuple[FaultStep, ...]:
    count = options.burners * len(os.sched_getaffinity(0))
    if not 0 < count <= BURNERS_MAX:
        raise FaultRefused(f"burners={options.burners}: give 1 or more for each core, {BURNERS_MAX} in all at most")
    return (Helper(mark=aim.mark, module="holdfast.faults.kinds.load", arguments=(str(count),)),)


def main() -> None:
    """Burn cores with some processes, in a control group if one is named, until killed; they inherit the mark."""
    for group in sys.argv[2:]:
        cgroups.move(os.getpid(), Path(group))
    for _ in range(int(sys.argv[1]) - 1):
        if os.fork() == 0:
            break
    else:
        os.write(1, READY)
    while True:
        pass


FAULTS = (
    Fault(
        "overload",
        Symptom.CPU_OVERLOAD,
        FaultScope.HOST,
        "processes that burn all cores of this machine",
        _overload,
        options=OverloadOptions,
        undo="they are killed",
    ),
)

if __name__ == "__main__":
    main()
