"""Names for how a crash looks, finer than ByteRobust's Table 1, each below a row of it. Pure.

A name tells what was seen. The same one may have its cause in a machine or in the script (Table 2): that is the root.
"""

from __future__ import annotations

from enum import StrEnum

from holdfast.symptoms.table_one import TableOne


class Crash(StrEnum):
    """What the logs and exit codes of a job's end show."""

    CUDA_OOM = "cuda_oom"
    ILLEGAL_MEMORY_ACCESS = "illegal_memory_access"
    DEVICE_SIDE_ASSERT = "device_side_assert"
    CUDA_ERROR = "cuda_error"
    DRIVER_VERSION_MISMATCH = "driver_version_mismatch"
    ECC_ERROR = "ecc_error"
    GPU_LOST = "gpu_lost"
    GPU_UNAVAILABLE = "gpu_unavailable"
    NVLINK_ERROR = "nvlink_error"
    NCCL_TIMEOUT = "nccl_timeout"
    NCCL_ERROR = "nccl_error"
    INFINIBAND_ERROR = "infiniband_error"
    NETWORK_ERROR = "network_error"
    RENDEZVOUS_TIMEOUT = "rendezvous_timeout"
    PORT_IN_USE = "port_in_use"
    HANG = "hang"
    CPU_OOM = "cpu_oom"
    PROCESS_LIMIT = "process_limit"
    TOO_MANY_OPEN_FILES = "too_many_open_files"
    INSUFFICIENT_DISK_SPACE = "insufficient_disk_space"
    READ_ONLY_FILESYSTEM = "read_only_filesystem"
    STALE_FILE_HANDLE = "stale_file_handle"
    MOUNT_LOST = "mount_lost"
    DISK_FAULT = "disk_fault"
    HDFS_ERROR = "hdfs_error"
    STORAGE_SERVICE_ERROR = "storage_service_error"
    EXTERNAL_SERVICE_ERROR = "external_service_error"
    AUTHENTICATION_ERROR = "authentication_error"
    CONTAINER_ERROR = "container_error"
    OS_KERNEL_PANIC = "os_kernel_panic"
    NODE_FAILURE = "node_failure"
    PREEMPTED = "preempted"
    TIME_LIMIT = "time_limit"
    KILLED = "killed"
    TERMINATED = "terminated"
    INTERRUPTED = "interrupted"
    SEGFAULT = "segfault"
    BUS_ERROR = "bus_error"
    ABORTED = "aborted"
    ILLEGAL_INSTRUCTION = "illegal_instruction"
    FLOATING_POINT_EXCEPTION = "floating_point_exception"
    NAN_VALUE = "nan_value"
    DATALOADER_ERROR = "dataloader_error"
    CHECKPOINT_CORRUPT = "checkpoint_corrupt"
    CHECKPOINT_MISMATCH = "checkpoint_mismatch"
    COLLECTIVE_MISMATCH = "collective_mismatch"
    CONFIG_ERROR = "config_error"
    IMPORT_ERROR = "import_error"
    BUILD_ERROR = "build_error"
    FILE_NOT_FOUND = "file_not_found"
    PERMISSION_DENIED = "permission_denied"
    USER_CODE_ERROR = "user_code_error"
    UNKNOWN = "unknown"


_UNDER: dict[TableOne, tuple[Crash, ...]] = {
    TableOne.CUDA_ERROR: (
        Crash.CUDA_ERROR,
        Crash.CUDA_OOM,
        Crash.ILLEGAL_MEMORY_ACCESS,
        Crash.DEVICE_SIDE_ASSERT,
        Crash.DRIVER_VERSION_MISMATCH,
        Crash.NVLINK_ERROR,
    ),
    TableOne.GPU_MEMORY_ERROR: (Crash.ECC_ERROR,),
    TableOne.GPU_UNAVAILABLE: (Crash.GPU_LOST, Crash.GPU_UNAVAILABLE),
    TableOne.INFINIBAND_ERROR: (Crash.INFINIBAND_ERROR, Crash.NETWORK_ERROR, Crash.NCCL_ERROR),
    TableOne.JOB_HANG: (Crash.NCCL_TIMEOUT, Crash.RENDEZVOUS_TIMEOUT, Crash.HANG),
    # Shared memory is memory: what dies of SIGBUS in a training mostly found /dev/shm full.
    TableOne.CPU_OOM: (Crash.CPU_OOM, Crash.BUS_ERROR),
    TableOne.CPU_OVERLOAD: (Crash.PROCESS_LIMIT, Crash.TOO_MANY_OPEN_FILES),
    TableOne.INSUFFICIENT_DISK_SPACE: (Crash.INSUFFICIENT_DISK_SPACE,),
    TableOne.FILESYSTEM_MOUNT: (Crash.READ_ONLY_FILESYSTEM, Crash.STALE_FILE_HANDLE, Crash.MOUNT_LOST),
    TableOne.DISK_FAULT: (Crash.DISK_FAULT,),
    TableOne.HDFS_ERROR: (Crash.HDFS_ERROR,),
    TableOne.EXTERNAL_SERVICE_ERROR: (
        Crash.EXTERNAL_SERVICE_ERROR,
        Crash.STORAGE_SERVICE_ERROR,
        Crash.AUTHENTICATION_ERROR,
    ),
    # Whoever runs the containers or the queue ended the job, or could not start it.
    TableOne.CONTAINER_ERROR: (
        Crash.CONTAINER_ERROR,
        Crash.PREEMPTED,
        Crash.TIME_LIMIT,
        Crash.KILLED,
        Crash.TERMINATED,
    ),
    TableOne.OS_KERNEL_PANIC: (Crash.OS_KERNEL_PANIC, Crash.NODE_FAILURE),
    TableOne.NAN_VALUE: (Crash.NAN_VALUE,),
    # What a change of code, data, settings or environment mends.
    TableOne.CODE_DATA_ADJUSTMENT: (
        Crash.USER_CODE_ERROR,
        Crash.CONFIG_ERROR,
        Crash.IMPORT_ERROR,
        Crash.BUILD_ERROR,
        Crash.DATALOADER_ERROR,
        Crash.CHECKPOINT_CORRUPT,
        Crash.CHECKPOINT_MISMATCH,
        Crash.COLLECTIVE_MISMATCH,
        Crash.FILE_NOT_FOUND,
        Crash.PERMISSION_DENIED,
        Crash.PORT_IN_USE,
        Crash.SEGFAULT,
        Crash.ABORTED,
        Crash.ILLEGAL_INSTRUCTION,
        Crash.FLOATING_POINT_EXCEPTION,
        Crash.INTERRUPTED,
    ),
}

PARENT: dict[str, TableOne] = {crash: row for row, crashes in _UNDER.items() for crash in crashes}
"""The row of Table 1 that a name belongs to. `unknown` has none."""
