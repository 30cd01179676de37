"""The environment variables of a rank that are the launcher's to set: with others a rank would be another rank."""

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
"""The step after which a rank may restore nothing. With --env a user says where a job begins; then the job knows."""

STORE_PREFIX = "HOLDFAST_STORE_PREFIX"
"""Secret first part of the names of keys in the generation's TCPStore, which takes connections from anyone."""
