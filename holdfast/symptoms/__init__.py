"""The vocabulary of symptoms: how a failure looks, each name with the row of ByteRobust's Table 1 that it belongs to.

A name is a symptom, not a cause: the same `cuda_error` may come from a broken memory chip or from a kernel that reads
out of bounds (ByteRobust, Table 2). What is known of the cause is the root.
"""

from __future__ import annotations

from enum import StrEnum


class Root(StrEnum):
    """Origin of the cause, as far as it is known."""

    INFRASTRUCTURE = "infrastructure"
    USER_CODE = "user_code"
    UNKNOWN = "unknown"


class Symptom(StrEnum):
    """Rows of Table 1, in its order; below each row the finer names that belong to it. Names of no row come last.

    Inspections give rows. Logs and exit codes, stop-time checks and the controller give finer names as well.
    """

    row: str
    """The row of Table 1, "" for a name of no row."""

    def __new__(cls, name: str, row: str | None = None) -> Symptom:
        """Make a name below `row`; without one, the name is itself a row."""
        symptom = str.__new__(cls, name)
        symptom._value_ = name
        symptom.row = name if row is None else row
        return symptom

    CUDA_ERROR = "cuda_error"
    CUDA_OOM = "cuda_oom", "cuda_error"
    ILLEGAL_MEMORY_ACCESS = "illegal_memory_access", "cuda_error"
    DEVICE_SIDE_ASSERT = "device_side_assert", "cuda_error"
    DRIVER_VERSION_MISMATCH = "driver_version_mismatch", "cuda_error"
    NVLINK_ERROR = "nvlink_error", "cuda_error"
    COMPUTE_ERROR = "compute_error", "cuda_error"

    CPU_OVERLOAD = "cpu_overload"
    PROCESS_LIMIT = "process_limit", "cpu_overload"
    TOO_MANY_OPEN_FILES = "too_many_open_files", "cpu_overload"

    CPU_OOM = "cpu_oom"
    # Shared memory is memory: training that dies of SIGBUS mostly found /dev/shm full.
    BUS_ERROR = "bus_error", "cpu_oom"

    INSUFFICIENT_DISK_SPACE = "insufficient_disk_space"

    INFINIBAND_ERROR = "infiniband_error"
    NETWORK_ERROR = "network_error", "infiniband_error"
    NCCL_ERROR = "nccl_error", "infiniband_error"
    NCCL_INTERNAL_ERROR = "nccl_internal_error", "infiniband_error"

    FILESYSTEM_MOUNT = "filesystem_mount"
    READ_ONLY_FILESYSTEM = "read_only_filesystem", "filesystem_mount"
    STALE_FILE_HANDLE = "stale_file_handle", "filesystem_mount"
    MOUNT_LOST = "mount_lost", "filesystem_mount"

    HDFS_ERROR = "hdfs_error"

    CONTAINER_ERROR = "container_error"
    # The container runtime or the queue ended the job, or could not start it.
    PREEMPTED = "preempted", "container_error"
    TIME_LIMIT = "time_limit", "container_error"
    KILLED = "killed", "container_error"
    TERMINATED = "terminated", "container_error"
    RANKS_VANISHED = "ranks_vanished", "container_error"

    OS_KERNEL_PANIC = "os_kernel_panic"
    NODE_FAILURE = "node_failure", "os_kernel_panic"
    NODE_LOST = "node_lost", "os_kernel_panic"

    GPU_MEMORY_ERROR = "gpu_memory_error"
    ECC_ERROR = "ecc_error", "gpu_memory_error"
    MEMORY_ERROR = "memory_error", "gpu_memory_error"

    EXTERNAL_SERVICE_ERROR = "external_service_error"
    STORAGE_SERVICE_ERROR = "storage_service_error", "external_service_error"
    AUTHENTICATION_ERROR = "authentication_error", "external_service_error"
    SERVICE_ELSEWHERE = "service_elsewhere", "external_service_error"

    GPU_UNAVAILABLE = "gpu_unavailable"
    GPU_LOST = "gpu_lost", "gpu_unavailable"

    DISK_FAULT = "disk_fault"

    JOB_HANG = "job_hang"
    HANG = "hang", "job_hang"
    NCCL_TIMEOUT = "nccl_timeout", "job_hang"
    RENDEZVOUS_TIMEOUT = "rendezvous_timeout", "job_hang"
    START_TIMEOUT = "start_timeout", "job_hang"
    NO_FIRST_STEP = "no_first_step", "job_hang"
    NO_ANSWER = "no_answer", "job_hang"

    MFU_DECLINE = "mfu_decline"
    FAIL_SLOW = "fail_slow", "mfu_decline"

    NAN_VALUE = "nan_value"
    NAN = "nan", "nan_value"
    JUMP = "jump", "nan_value"
    # Wrong results come to light as wrong numbers.
    SILENT_DATA_CORRUPTION = "silent_data_corruption", "nan_value"

    # Repaired by a change of code, data, settings or environment.
    CODE_DATA_ADJUSTMENT = "code_data_adjustment"
    USER_CODE_ERROR = "user_code_error", "code_data_adjustment"
    USER_EXCEPTION = "user_exception", "code_data_adjustment"
    EXIT_CODE = "exit_code", "code_data_adjustment"
    CONFIG_ERROR = "config_error", "code_data_adjustment"
    IMPORT_ERROR = "import_error", "code_data_adjustment"
    BUILD_ERROR = "build_error", "code_data_adjustment"
    DATALOADER_ERROR = "dataloader_error", "code_data_adjustment"
    CHECKPOINT_CORRUPT = "checkpoint_corrupt", "code_data_adjustment"
    CHECKPOINT_MISMATCH = "checkpoint_mismatch", "code_data_adjustment"
    COLLECTIVE_MISMATCH = "collective_mismatch", "code_data_adjustment"
    FILE_NOT_FOUND = "file_not_found", "code_data_adjustment"
    PERMISSION_DENIED = "permission_denied", "code_data_adjustment"
    PORT_IN_USE = "port_in_use", "code_data_adjustment"
    SEGFAULT = "segfault", "code_data_adjustment"
    ABORTED = "aborted", "code_data_adjustment"
    ILLEGAL_INSTRUCTION = "illegal_instruction", "code_data_adjustment"
    FLOATING_POINT_EXCEPTION = "floating_point_exception", "code_data_adjustment"
    INTERRUPTED = "interrupted", "code_data_adjustment"

    # These names show that something ended, not why.
    UNKNOWN = "unknown", ""
    KILLED_BY_SIGNAL = "killed_by_signal", ""
    INFRASTRUCTURE_ERROR = "infrastructure_error", ""
    PEER_LOST = "peer_lost", ""
    NODE_DEPARTED = "node_departed", ""
    NODE_UNFIT = "node_unfit", ""
    # A check of a plugin failed; only its author knows what it looks for.
    PLUGIN_FAILED = "plugin_failed", ""


TABLE_ONE = tuple(symptom for symptom in Symptom if symptom.row == symptom.value)
"""The rows of Table 1, in its order."""

_ROW_BY_NAME = {symptom.value: symptom.row for symptom in Symptom}


def row_of(name: str) -> str:
    """Return the row of Table 1 that a name belongs to; "" for a name of no row or of a later version."""
    return _ROW_BY_NAME.get(name, "")
