"""The user that the ranks of an order run as."""

from __future__ import annotations

import contextlib
import glob
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import structlog

import holdfast
from holdfast.bounded_calls import within
from holdfast.node import reach
from holdfast.node.users import own_users
from holdfast.node.users.job_user import JobUser
from holdfast.node.users.own_users import IdRange
from holdfast.orders.node import NodeOrder, Placement
from holdfast_agent.companions.start_command import log_directory
from holdfast_agent.files.directories import Directories

PROBE_S_MAX = 3.0
"""Time for the probe. A mount that hangs, or a machine under load, is no reason to give a job the agent's rights."""
ANSWER_S_MAX = 2.0
"""Time for a call to the job's directory. The agent waits for it, and reports nothing meanwhile."""

_DEVICES = (
    *("/dev/nvidia[0-9]*", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/kfd", "/dev/dri/renderD*", "/dev/accel/accel*"),
    *("/dev/infiniband/uverbs*", "/dev/infiniband/rdma_cm"),
)
log = structlog.get_logger(__name__)


class RankUser(NamedTuple):
    """The user that ranks run as; None: the agent's. `reason`: why they run as root although another was to be used."""

    user: JobUser | None
    reason: str = ""

    @property
    def name(self) -> str:
        return self.user.name if self.user is not None else ""


class _Closed(Exception):
    """A user of the job's own cannot reach what ranks need; the message names it."""


class RankUsers:
    """Chooses the user of each order's ranks, and prepares the node's directories and the job's for it."""

    def __init__(self, directories: Directories) -> None:
        self._directories = directories
        self._last: tuple[str, str] = ("", "")
        """The last job that ran as root, and why."""
        self._chosen: tuple[str, RankUser] = ("", RankUser(None))
        """The last job, and its user."""

    def choose(self, order: NodeOrder, script: str) -> RankUser:
        """Return the user of an order's ranks, with the node's directories and the job's prepared for it.

        It is, in this order: the agent's user for checks, or if the agent changes no user; the one user that the agent
        is set to; the owner of the job's directory, if it is a user of a job's own; a user of the job's own, which then
        gets that directory; root, if such a user cannot have or reach what ranks need and falling back is allowed.
        While the job's directory does not answer, it is the user chosen last.
        """
        placement, run_as, begin = order.placement, self._directories.run_as, self._directories.begin_generation
        assert placement is not None
        job, directory = order.job or "", Path(placement.job.directory)
        # Checks are programs of Holdfast, and test devices that only root may open.
        if placement.purpose == "checks" or (run_as.user is None and run_as.ids is None):
            begin(job, order.fence, run_as.user)
            return RankUser(None)
        if run_as.user is not None:
            begin(job, order.fence, run_as.user)
            with contextlib.suppress(TimeoutError):
                within(partial(self._directories.begin_job, directory, run_as.user), ANSWER_S_MAX)
            return RankUser(run_as.user)
        assert run_as.ids is not None
        own = run_as.ids.user(run_as.ids.of(str(directory)), str(self._directories.home(job)))
        try:
            chosen = self._of_directory(order, placement, script, own, run_as.ids)
        except TimeoutError:
            chosen = self._chosen[1] if self._chosen[0] == job else RankUser(own)
            log.warning("the job's directory does not answer", job=job, directory=str(directory), user=chosen.name)
        begin(job, order.fence, chosen.user)
        self._chosen = job, chosen
        if chosen.user is not None and (logs := log_directory(placement)):
            _give_log_directory(Path(logs), chosen.user, run_as.ids)
        return chosen

    def _of_directory(
        self, order: NodeOrder, placement: Placement, script: str, own: JobUser, ids: IdRange
    ) -> RankUser:
        """Return the user that the job's directory decides on, and make a missing one for it. Raises TimeoutError."""
        may_fall_back = self._directories.run_as.may_fall_back
        job, directory = order.job or "", Path(placement.job.directory)
        try:
            uid = within(partial(own_users.owner, directory, ids), ANSWER_S_MAX)
            if uid is not None:
                return RankUser(ids.user(uid, own.home))
            if may_fall_back:
                self._admit_and_probe(order, placement, script, own)
            within(lambda: own_users.give(Path(os.path.realpath(directory)), own), ANSWER_S_MAX)
        except TimeoutError:
            raise
        except own_users.Exchanged as error:
            log.error("the job's directory is not used as root", job=job, reason=str(error))
        except (own_users.NotOwned, _Closed, OSError) as error:
            if may_fall_back:
                return RankUser(None, self._fall_back(order, placement, script, own, error))
            log.warning("ranks may not use the job's directory", job=job, reason=str(error))
        return RankUser(own)

    def _fall_back(self, order: NodeOrder, placement: Placement, script: str, own: JobUser, error: Exception) -> str:
        """Return why ranks run as root, and have the job's directory record it for the next generation."""
        job, directory, reason = order.job or "", placement.job.directory, str(error)
        if isinstance(error, own_users.NotOwned):
            # It exists, and its owner is the record.
            reason += f" (`chown -R {own.uid} {directory}` gives it to a user of the job's own)"
            if self._last[0] == job:
                reason = self._last[1]
            else:
                # Another node of the job may have made it a moment ago, or this one before its agent was started again.
                with contextlib.suppress(OSError):
                    reason = self._closed_first(order, placement, script, own) or reason
        else:
            with contextlib.suppress(OSError):
                within(lambda: Path(directory).mkdir(parents=True, exist_ok=True), ANSWER_S_MAX)
        self._last = job, reason
        log.warning("ranks run as root", job=job, reason=reason, see="docs/security.md")
        return reason

    def _closed_first(self, order: NodeOrder, placement: Placement, script: str, user: JobUser) -> str:
        try:
            self._admit_and_probe(order, placement, script, user)
        except _Closed as error:
            return str(error)
        return ""

    def _admit_and_probe(self, order: NodeOrder, placement: Placement, script: str, user: JobUser) -> None:
        """Raise _Closed or OSError if this user cannot reach what the job's ranks need."""
        # The probe has the way in that ranks would have.
        self._directories.begin_generation(order.job or "", order.fence, user)
        _require_reachable(placement, self._directories.root, script, user)


def _give_log_directory(directory: Path, user: JobUser, ids: IdRange) -> None:
    """Make the directory that --log-dir asks for, for the job's user. If it cannot be made, the zygote reports that."""

    def give() -> None:
        if own_users.owner(directory, ids) is None:
            own_users.give(directory, user)

    try:
        within(give, ANSWER_S_MAX)
    except (TimeoutError, OSError, own_users.NotOwned, own_users.Exchanged) as error:
        log.warning("the directory of logs is not made", directory=str(directory), reason=str(error))


def _require_reachable(placement: Placement, state: Path, script: str, user: JobUser) -> None:
    """Raise _Closed or OSError if this user cannot reach what the job's ranks need."""
    needed = [(what, str(path), mode) for what, path, mode in _needed(placement, state, script) if path]
    command = (sys.executable, "-I", "-S", str(reach.__file__))
    probe = partial(
        subprocess.run,
        command,
        input=json.dumps(needed),
        capture_output=True,
        text=True,
        check=False,
        timeout=PROBE_S_MAX,
        user=user.uid,
        group=user.gid,
        extra_groups=user.groups,
        cwd="/",
        env={name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ},
    )
    try:
        # A process in such a call cannot be killed, and `run` would wait for its end.
        done = within(probe, PROBE_S_MAX)
    except (TimeoutError, subprocess.TimeoutExpired):
        log.warning("it is not known what ranks can reach", after_s=PROBE_S_MAX)
        return
    except (OSError, subprocess.SubprocessError) as error:
        raise _Closed(_why_not_run(str(error))) from error
    if done.returncode:
        raise _Closed(_why_not_run("".join(done.stderr.strip().splitlines()[-1:])))
    if done.stdout:
        what, path, part = json.loads(done.stdout)
        raise _Closed(_closed(what, path, part))


def _why_not_run(error: str) -> str:
    for program in (sys.executable, os.path.realpath(sys.executable), str(reach.__file__)):
        if (part := reach.closed_to_others(Path(program).parent)) is not None:
            return _closed("program" if program != reach.__file__ else "package holdfast in", program, str(part))
    return f"a user of the job's own cannot run Python: {error}"


def _closed(what: str, path: str, part: str) -> str:
    below = "" if part == path else f", and the {what} {path} lies below it"
    if what == _JOB_DIRECTORY:
        return f"a user of the job's own cannot pass {part}, or could exchange what lies there{below}"
    return f"{part} is closed to a user of the job's own{below or f': the {what}'}"


_JOB_DIRECTORY = "job's directory"


def _needed(placement: Placement, state: Path, script: str) -> Iterator[tuple[str, str, int]]:
    job = placement.job
    yield "agent's directory", str(state), os.X_OK
    yield "working directory", job.cwd, os.R_OK | os.X_OK
    if not job.is_module:
        yield "script", script, os.R_OK
    if os.path.lexists(job.python):
        yield "job's Python", job.python, os.X_OK
    yield "Python's library", os.__file__, os.R_OK
    yield "package holdfast", str(holdfast.__file__), os.R_OK
    found = importlib.util.find_spec("torch")
    yield "package torch", found.origin or "" if found is not None else "", os.R_OK
    for entry in sys.path:
        if os.path.isdir(entry):
            yield "packages in", entry, os.R_OK | os.X_OK
    for pattern in _DEVICES:
        for device in glob.glob(pattern):
            yield "device", device, os.R_OK | os.W_OK
    yield _JOB_DIRECTORY, job.directory, reach.LASTING
