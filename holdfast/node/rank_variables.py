"""Environment variables of a rank that only the launcher sets; `holdfast run` refuses them in `--env`."""

SHARED_MACHINE = "HOLDFAST_SHARED_MACHINE"
"""Set for agents that share their machine with others, as in an embedded cluster of several nodes."""

RESERVED = frozenset(
    {
        "RANK",
        "LOCAL_RANK",
        "WORLD_SIZE",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
        "GROUP_WORLD_SIZE",
        "ROLE_RANK",
        "ROLE_WORLD_SIZE",
        "ROLE_NAME",
        "MASTER_ADDR",
        "MASTER_PORT",
        "TORCHELASTIC_RUN_ID",
        "TORCHELASTIC_RESTART_COUNT",
        "TORCHELASTIC_MAX_RESTARTS",
        "TORCHELASTIC_SIGNALS_TO_HANDLE",
        "TORCHELASTIC_USE_AGENT_STORE",
        "TORCHELASTIC_ERROR_FILE",
        "HOLDFAST_JOB",
        "HOLDFAST_JOB_DIR",
        "HOLDFAST_JOB_SUBMITTED_MS",
        "HOLDFAST_GENERATION",
        "HOLDFAST_MESH",
        "HOLDFAST_NODE",
        "HOLDFAST_NODE_DIR",
        "HOLDFAST_LEDGER",
        "HOLDFAST_REPORTS",
        "HOLDFAST_VAULT",
        "HOLDFAST_CODE_ROOT",
        "HOLDFAST_CODE_DIR",
        "HOLDFAST_CODE_VERSION",
        "HOLDFAST_REPLAY",
        "HOLDFAST_STORE_PREFIX",
        "HOLDFAST_SCRATCH",
    }
)

RESTORE_STEP = "HOLDFAST_RESTORE_STEP"
"""The newest step that a rank may restore. A user may set it with `--env` when a job is submitted; from then on the
controller's orders have it."""

STORE_PREFIX = "HOLDFAST_STORE_PREFIX"
"""Secret prefix of keys in the generation's TCPStore, which accepts connections from every process."""

MEMORY_CHECKPOINTS = "HOLDFAST_MEMORY_CHECKPOINTS"
"""1: the script's own checkpoints are kept in memory too. Set by `holdfast run --memory-checkpoints`."""

SCRIPT_LINK = "HOLDFAST_SCRIPT_LINK"
"""The absolute path by which `holdfast run` was given the script, if that leads to it over a link."""
