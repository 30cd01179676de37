"""What failures look like from outside: the names of ByteRobust's Table 1, and finer ones below them. Pure.

A name is a symptom, not a cause: the same `cuda_error` may come from a broken memory chip or from a kernel that reads
out of bounds (ByteRobust, Table 2). What is known of the cause is the root.
"""

from __future__ import annotations

from enum import StrEnum


class Root(StrEnum):
    """Where the cause lies, as far as it is known."""

    INFRASTRUCTURE = "infrastructure"
    USER_CODE = "user_code"
    UNKNOWN = "unknown"


class TableOne(StrEnum):
    """The rows of ByteRobust's Table 1, in its order."""

    CUDA_ERROR = "cuda_error"
    CPU_OVERLOAD = "cpu_overload"
    CPU_OOM = "cpu_oom"
    INSUFFICIENT_DISK_SPACE = "insufficient_disk_space"
    INFINIBAND_ERROR = "infiniband_error"
    FILESYSTEM_MOUNT = "filesystem_mount"
    HDFS_ERROR = "hdfs_error"
    CONTAINER_ERROR = "container_error"
    OS_KERNEL_PANIC = "os_kernel_panic"
    GPU_MEMORY_ERROR = "gpu_memory_error"
    EXTERNAL_SERVICE_ERROR = "external_service_error"
    GPU_UNAVAILABLE = "gpu_unavailable"
    DISK_FAULT = "disk_fault"
    JOB_HANG = "job_hang"
    MFU_DECLINE = "mfu_decline"
    NAN_VALUE = "nan_value"
    CODE_DATA_ADJUSTMENT = "code_data_adjustment"
