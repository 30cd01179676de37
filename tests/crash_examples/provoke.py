"""Makes the examples in `provoked/` anew: breaks a training in each way of `faulty_training.py` and keeps what it said.

    python -m tests.crash_examples.provoke [NAME...]

Needs root for mounts. Of what was said only paths and names of this machine are replaced: the directory of the job by
/job, that of Python by /env, the host's name by node-0. Long logs are cut in the middle, marked by `[...]`.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
SCRIPT = HERE / "faulty_training.py"
LINES_MAX = 160
_MS_RDONLY = 1


@dataclass(frozen=True, kw_only=True)
class Provocation:
    """`how`: one process, a file for each rank, or torchrun (`merged`, `tee`). `expected` as in a case file."""

    name: str
    fault: str
    expected: str
    how: str = "one"
    args: tuple[str, ...] = ()
    ranks: int = 3
    mount: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    killed: tuple[int, int] | None = None
    absent: int | None = None


def _one(fault: str, symptom: str, root: str, **options: object) -> Provocation:
    return Provocation(name=fault, fault=fault, expected=f"symptom={symptom} root={root}", **options)  # type: ignore[arg-type]


def _many(
    fault: str,
    symptom: str,
    root: str,
    *,
    how: str = "files",
    suffix: str = "",
    rank: int | None = 1,
    **options: object,
) -> Provocation:
    args = (*options.pop("args", ()), "--rank", "1")  # type: ignore[misc]
    named = "null" if rank is None else str(rank)
    return Provocation(
        name=f"{fault}_{suffix or how}",
        fault=fault,
        how=how,
        args=args,
        expected=f"symptom={symptom} root={root} first_rank={named}",
        **options,  # type: ignore[arg-type]
    )


USER = "user_code"
INFRA = "infrastructure"
PROVOCATIONS: tuple[Provocation, ...] = (
    *(
        _one(fault, "user_code_error", USER)
        for fault in (
            "type_error",
            "index_error",
            "key_error",
            "attribute_error",
            "name_error",
            "unbound_local",
            "zero_division",
            "assertion",
            "not_implemented",
            "recursion",
            "unicode_decode",
            "json_decode",
            "pickling",
            "shapes",
            "stacking",
            "in_place",
            "backward_twice",
            "while_handling",
            "group",
            "in_a_thread",
            "spawned",
            "weights_only",
        )
    ),
    *(
        _one(fault, "config_error", USER)
        for fault in (
            "not_divisible",
            "yaml_settings",
            "toml_settings",
            "cuda_missing",
            "unset_environment",
            "unset_rank",
        )
    ),
    *(_one(fault, "nan_value", "unknown") for fault in ("nan_anomaly", "nan_stop", "nan_raise")),
    *(_one(fault, "segfault", "unknown") for fault in ("segfault", "segfault_told", "worker_segfault")),
    *(_one(fault, "aborted", "unknown") for fault in ("abort", "abort_told", "double_free")),
    _one("illegal_instruction", "illegal_instruction", "unknown"),
    _one("floating_point", "floating_point_exception", "unknown"),
    *(_one(fault, "bus_error", "unknown") for fault in ("bus_error", "worker_bus_error")),
    _one("killed", "killed", "unknown"),
    _one("terminated", "terminated", "unknown"),
    _one("interrupted", "interrupted", "unknown"),
    *(_one(fault, "unknown", "unknown") for fault in ("exits", "exits_with_words")),
    *(_one(fault, "cpu_oom", "unknown") for fault in ("bad_alloc", "memory_error", "numpy_memory")),
    _one("open_files", "too_many_open_files", "unknown"),
    _one("threads", "process_limit", "unknown"),
    *(
        _one(fault, "insufficient_disk_space", INFRA, mount="small")
        for fault in ("disk_full", "disk_full_checkpoint", "chained")
    ),
    _one("read_only", "read_only_filesystem", INFRA, mount="read_only"),
    _one("mount_lost", "mount_lost", INFRA, mount="fuse"),
    _one("eio", "disk_fault", INFRA),
    _one("worker_eio", "disk_fault", INFRA),
    _one("worker_out_of_shared_memory", "bus_error", "unknown", mount="shm"),
    _one("permission", "permission_denied", USER),
    _one("missing_file", "file_not_found", USER),
    *(
        _one(fault, "checkpoint_corrupt", "unknown")
        for fault in (
            "truncated_checkpoint",
            "empty_checkpoint",
            "garbage_checkpoint",
            "truncated_pickle",
            "truncated_safetensors",
        )
    ),
    *(_one(fault, "checkpoint_mismatch", USER) for fault in ("other_shapes", "other_keys", "other_optimizer")),
    *(_one(fault, "import_error", USER) for fault in ("missing_module", "missing_name", "missing_library")),
    _one("missing_ninja", "build_error", USER),
    _one("port_taken", "port_in_use", "unknown"),
    _one("port_taken_by_script", "port_in_use", "unknown"),
    _one("nobody_joins", "rendezvous_timeout", "unknown"),
    _one("master_unreachable", "rendezvous_timeout", "unknown"),
    _one("host_unknown", "network_error", "unknown"),
    _one("no_network", "network_error", INFRA, mount="network"),
    *(
        _one(fault, "external_service_error", INFRA)
        for fault in ("http_503", "http_502_urllib", "http_429", "http_unresolved")
    ),
    _one("http_401", "authentication_error", USER),
    *(_one(fault, "config_error", USER) for fault in ("s3_no_key", "s3_no_bucket")),
    *(_one(fault, "storage_service_error", INFRA) for fault in ("s3_unreachable", "s3_slow_down")),
    _one("s3_credentials", "authentication_error", USER),
    *(
        _one(fault, "dataloader_error", USER)
        for fault in ("worker_index", "worker_key", "worker_decode", "worker_missing_file")
    ),
    *(_one(fault, "dataloader_error", "unknown") for fault in ("worker_exits", "worker_killed", "worker_hangs")),
    _one("stack_timer", "hang", "unknown"),
    Provocation(name="survived", fault="survives", args=("--steps", "12"), expected="symptom=unknown root=unknown"),
    Provocation(
        name="wrong_arguments",
        fault="type_error",
        args=("--micro-batchsize", "4"),
        expected="symptom=config_error root=user_code",
    ),
    Provocation(
        name="missing_script",
        fault="",
        command=(sys.executable, "/job/trian.py"),
        expected="symptom=config_error root=user_code",
    ),
    Provocation(
        name="missing_module_run",
        fault="",
        command=(sys.executable, "-m", "trainn"),
        expected="symptom=import_error root=user_code",
    ),
    Provocation(
        name="syntax_error",
        fault="",
        command=(sys.executable, "-c", "def step(:\n    pass"),
        expected="symptom=user_code_error root=user_code",
    ),
    # Several ranks, a log for each: the others lose their partner.
    *(
        _many(fault, symptom, root)
        for fault, symptom, root in (
            ("type_error", "user_code_error", USER),
            ("shapes", "user_code_error", USER),
            ("segfault", "segfault", "unknown"),
            ("killed", "killed", "unknown"),
            ("worker_key", "dataloader_error", USER),
            ("worker_exits", "dataloader_error", "unknown"),
            ("bad_alloc", "cpu_oom", "unknown"),
            ("double_free", "aborted", "unknown"),
            ("eio", "disk_fault", INFRA),
            ("nan_raise", "nan_value", "unknown"),
            ("truncated_checkpoint", "checkpoint_corrupt", "unknown"),
            ("missing_module", "import_error", USER),
            ("http_503", "external_service_error", INFRA),
            ("abort", "aborted", "unknown"),
            ("interrupted", "interrupted", "unknown"),
        )
    ),
    _many("disk_full_checkpoint", "insufficient_disk_space", INFRA, mount="small"),
    _many("mount_lost", "mount_lost", INFRA, mount="fuse"),
    # Under torchrun, everything in one log.
    *(
        _many(fault, symptom, root, how="merged")
        for fault, symptom, root in (
            ("index_error", "user_code_error", USER),
            ("segfault", "segfault", "unknown"),
            ("killed", "killed", "unknown"),
            ("bus_error", "bus_error", "unknown"),
            ("worker_killed", "dataloader_error", "unknown"),
            ("other_shapes", "checkpoint_mismatch", USER),
        )
    ),
    # With --tee a log names only local ranks; torchrun's own report tells that local is global here.
    *(
        _many(fault, symptom, root, how="tee")
        for fault, symptom, root in (
            ("zero_division", "user_code_error", USER),
            ("segfault_told", "segfault", "unknown"),
            ("missing_file", "file_not_found", USER),
        )
    ),
    Provocation(
        name="all_ranks_key_error",
        fault="key_error",
        how="merged",
        args=("--at", "0"),
        expected="symptom=user_code_error root=user_code",
    ),
    Provocation(
        name="all_ranks_import",
        fault="missing_module",
        how="files",
        args=("--at", "0"),
        expected="symptom=import_error root=user_code",
    ),
    # A rank that does not come: the others time out.
    _many(
        "hangs",
        "unknown",
        "unknown",
        rank=None,
        args=("--timeout-s", "4"),
        suffix="gloo_timeout",
        killed=(1, signal.SIGKILL),
    ),
    Provocation(
        name="barrier_missed",
        fault="hangs",
        how="files",
        args=("--rank", "2", "--barrier-s", "3"),
        killed=(2, signal.SIGKILL),
        expected="symptom=hang root=unknown",
    ),
    Provocation(
        name="other_collective",
        fault="other_collective",
        how="files",
        args=("--rank", "1", "--timeout-s", "8"),
        environment={"TORCH_DISTRIBUTED_DEBUG": "DETAIL"},
        expected="symptom=collective_mismatch root=user_code",
    ),
    Provocation(
        name="rank_absent",
        fault="type_error",
        how="files",
        args=("--timeout-s", "3"),
        absent=2,
        expected="symptom=rendezvous_timeout root=unknown",
    ),
    Provocation(
        name="torchrun_terminated",
        fault="hangs",
        how="merged",
        args=("--at", "5"),
        killed=(-1, signal.SIGTERM),
        expected="symptom=terminated root=unknown",
    ),
)


def main() -> None:
    wanted = set(sys.argv[1:])
    for one in PROVOCATIONS:
        if wanted and one.name not in wanted:
            continue
        began = time.monotonic()
        logs, codes = provoke(one)
        write(one, logs, codes)
        print(f"{one.name}: {time.monotonic() - began:.1f} s, {codes}", flush=True)


def provoke(one: Provocation) -> tuple[dict[str, str], dict[int, int]]:
    """The logs by name, and the exit codes by rank."""
    with tempfile.TemporaryDirectory(prefix="job-") as made:
        job = Path(made)
        environment = {
            **os.environ,
            "JOB_DIR": made,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": "",
            "PYTHONUNBUFFERED": "1",
            **one.environment,
        }
        environment.pop("NODE_NAME", None)
        script = (str(SCRIPT), one.fault, *one.args)
        match one.how:
            case "one":
                logs, codes = _run_one(one, one.command or (sys.executable, *script), environment, job)
            case "files":
                logs, codes = _run_files(one, script, environment, job)
            case _:
                logs, codes = _run_torchrun(one, script, environment, job)
        replaced = {name: _neutral(text, made) for name, text in logs.items()}
    return replaced, codes


def _run_one(
    one: Provocation, command: tuple[str, ...], environment: dict[str, str], job: Path
) -> tuple[dict[str, str], dict[int, int]]:
    (job / "small").mkdir()
    with open(job / "log", "wb") as log:
        code = subprocess.call(
            command, env=environment, stdout=log, stderr=log, cwd=job, preexec_fn=_mounted(one.mount, job), timeout=120
        )
    return {"train.log": (job / "log").read_text(errors="replace")}, {0: code}


def _run_files(
    one: Provocation, script: tuple[str, ...], environment: dict[str, str], job: Path
) -> tuple[dict[str, str], dict[int, int]]:
    (job / "small").mkdir()
    port = _free_port()
    ranks: dict[int, subprocess.Popen[bytes]] = {}
    for rank in range(one.ranks):
        if rank == one.absent:
            continue
        own = environment | {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(one.ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        with open(job / f"rank-{rank}.out", "wb") as out, open(job / f"rank-{rank}.err", "wb") as err:
            mount = one.mount if rank == 1 else ""
            ranks[rank] = subprocess.Popen(
                (sys.executable, *script), env=own, stdout=out, stderr=err, cwd=job, preexec_fn=_mounted(mount, job)
            )
    codes: dict[int, int] = {}
    for rank, process in sorted(ranks.items(), key=lambda item: one.killed is not None and item[0] == one.killed[0]):
        if one.killed and rank == one.killed[0]:
            # The launcher ends, at last, who did not end by itself; its code says nothing of the cause.
            process.send_signal(one.killed[1])
            process.wait(60)
        else:
            codes[rank] = process.wait(90)
    logs = {}
    for rank in ranks:
        for end in ("out", "err"):
            text = (job / f"rank-{rank}.{end}").read_text(errors="replace")
            if text:
                logs[f"rank-{rank}.{end}"] = text
    return logs, codes


def _run_torchrun(
    one: Provocation, script: tuple[str, ...], environment: dict[str, str], job: Path
) -> tuple[dict[str, str], dict[int, int]]:
    tee = ("--tee", "3", "--log-dir", str(job / "logs")) if one.how == "tee" else ()
    command = (
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(one.ranks),
        "--master-port", str(_free_port()), *tee, *script,
    )  # fmt: skip
    with open(job / "log", "wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=job)
        if one.killed:
            deadline = time.monotonic() + 60
            while "step 4" not in (job / "log").read_text(errors="replace") and time.monotonic() < deadline:
                time.sleep(0.2)
            process.send_signal(one.killed[1])
        process.wait(120)
    return {"train.log": (job / "log").read_text(errors="replace")}, {}


def _mounted(kind: str, job: Path) -> object:
    """What the child does before it runs: mounts in a namespace of its own."""
    if not kind:
        return None
    small = str(job / "small").encode()

    def enter() -> None:
        library = ctypes.CDLL(None, use_errno=True)
        flags = 0x40000000 if kind == "network" else 0x00020000
        if library.unshare(flags):
            raise OSError(ctypes.get_errno(), "unshare")
        if kind == "network":
            return
        library.mount(b"none", b"/", None, 0x4000 | 0x40000, None)
        failed = 0
        if kind == "small":
            failed = library.mount(b"tmpfs", small, b"tmpfs", 0, b"size=1m")
        elif kind == "read_only":
            failed = library.mount(b"tmpfs", small, b"tmpfs", _MS_RDONLY, b"size=1m")
        elif kind == "shm":
            failed = library.mount(b"tmpfs", b"/dev/shm", b"tmpfs", 0, b"size=1m")
        elif kind == "fuse":
            server = os.open("/dev/fuse", os.O_RDWR)
            failed = library.mount(
                b"data", small, b"fuse", 0, f"fd={server},rootmode=40000,user_id=0,group_id=0".encode()
            )
            os.close(server)
        if failed:
            raise OSError(ctypes.get_errno(), f"mount {kind}")

    return enter


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def _neutral(text: str, job: str) -> str:
    for path, stands in (
        (str(SCRIPT), "/job/train.py"), (str(HERE), "/job"), (job, "/job"), (sys.prefix, "/env"),
        (os.path.dirname(os.path.dirname(os.__file__)), "/env/lib"),
        (sys.base_prefix, "/env"), (socket.gethostname(), "node-0"),
    ):  # fmt: skip
        text = text.replace(path, stands)
    text = re.sub(r"/tmp/[\w./-]+", "/tmp/x", text)
    lines = text.split("\n")
    if len(lines) > LINES_MAX:
        lines = [*lines[: LINES_MAX // 2], "[...]", *lines[-LINES_MAX // 2 :]]
    return "\n".join(lines)


def write(one: Provocation, logs: dict[str, str], codes: dict[int, int]) -> None:
    """One case file: what is expected, exit codes, and each log under its name."""
    ends = ",".join(f"{rank}={code}" for rank, code in sorted(codes.items()))
    parts = [f"# expected: {one.expected}", f"# exit_codes: {ends}"]
    for name, text in logs.items():
        parts += [f"=== {name}", text.rstrip("\n")]
    (HERE / "provoked" / f"{one.name}.case").write_text("\n".join(parts) + "\n")


if __name__ == "__main__":
    main()
