"""Options shared by all tests, the order in which they begin, and the signals that they start with."""

import functools
import gc
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.file_order import WAITING, FileOrder, collects_all, folder, place
from tests.garbage import search_rarely_for_garbage
from tests.warm_python import KINDS, shared, start_server

E2E_LIMIT_S = 300
COMPUTING_NICENESS = 5
"""A third of the weight: enough for it to be through before the others."""
ROOT = Path(__file__).parent

# Collecting thousands of tests makes objects that all stay: searching them for garbage again and again would take half
# of the time, and in each worker.
gc.disable()

# Whoever starts the tests in the background hands these down ignored, and every process that a test starts would
# ignore them too: the tests of Ctrl-C and of a closed terminal then wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# The kernel's log is the machine's: what one test writes into it, the agents of all others would read as well.
os.environ.setdefault("HOLDFAST_INSPECTIONS_DISABLED", "kernel")

# As `holdfast up` gives it to its agents: one nursery serves them and those that tests start (tests/nursery.py).
os.environ["PYTHONUNBUFFERED"] = "1"

# How long an example takes says how busy the machine is, and nothing about the code.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="Rewrite golden traces to what the code decides now.")
    parser.addoption("--seed", type=int, default=None, help="Run only this seed of the simulation.")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell a worker whether it collects all tests, and what it forks processes from. None leaves any out unless all
    are run, file by file.
    """
    option, source = node.config.option, node.config.args_source
    is_split = option.dist == "loadfile" and source is pytest.Config.ArgsSource.TESTPATHS
    node.workerinput["collects_all"] = not is_split or collects_all(node.gateway.id, option.numprocesses)
    node.workerinput["shared"] = _shared_servers() if is_split else {}


@functools.cache
def _shared_servers() -> dict[str, str]:
    """Start what imports torch or Holdfast once for all workers; return the sockets by kind."""
    # It takes the environment as it is when it is imported.
    from tests.nursery import NURSERY, worker_nursery

    return {NURSERY: str(worker_nursery()), **{kind: str(start_server(kind)) for kind in KINDS}}


def pytest_configure(config: pytest.Config) -> None:
    shared.update(getattr(config, "workerinput", {}).get("shared", {}))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    given: dict[str, Any] = getattr(config, "workerinput", {})
    if given.get("collects_all", True) or collection_path.parent != ROOT or not collection_path.is_dir():
        return None
    return None if collection_path.name in WAITING else True


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Beside each other what takes long begins first, so that nobody waits for it in the end.

    What hangs is ended; where a cluster has to start first, and to tell what it looks like in the end, that is later.
    """
    for item in items:
        if item.get_closest_marker("long") and "HOLDFAST_LONG" not in os.environ:
            reason = "takes a minute; simulation and traces show its decisions in every run: make test LONG=1"
            item.add_marker(pytest.mark.skip(reason=reason))
        if item.get_closest_marker("e2e") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(E2E_LIMIT_S))
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=place)


@functools.cache
def _usual_niceness() -> int | None:
    """Return the niceness of this process; None: it is no worker beside others, or could not go back to it."""
    usual = os.getpriority(os.PRIO_PROCESS, 0)
    try:
        os.setpriority(os.PRIO_PROCESS, 0, usual - 1)
    except PermissionError:
        return None
    os.setpriority(os.PRIO_PROCESS, 0, usual)
    return usual if "PYTEST_XDIST_WORKER" in os.environ else None


def pytest_runtest_logstart(nodeid: str) -> None:
    """What computes leaves the processors to what waits: clusters are slow, or seem to hang, where it does not."""
    if (usual := _usual_niceness()) is not None:
        os.setpriority(os.PRIO_PROCESS, 0, usual + (0 if folder(nodeid) in WAITING else COMPUTING_NICENESS))


def pytest_collection_finish() -> None:
    search_rarely_for_garbage()
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Callable[..., object]) -> FileOrder | None:
    return FileOrder(config, log) if config.getoption("dist") == "loadfile" else None
