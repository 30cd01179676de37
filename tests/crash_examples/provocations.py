"""What is provoked, how, and the answer that is right."""

from __future__ import annotations

import signal
import sys
from dataclasses import dataclass, field


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
