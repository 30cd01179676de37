"""Options that `holdfast up`, or a run that starts a cluster, passes to the supervisor."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class ClusterOptions:
    """Options of `holdfast up`. None means as in the last run, or the default on a first start."""

    nodes: int | None = None
    postgres_port: int | None = None
    nats_port: int | None = None
    allow_faults: bool = False
    """`holdfast inject` may break things."""
    new_passwords: bool = False
    """All users get new passwords."""
    namespaces: bool = False
    """Each node gets a separate network."""
    for_one_run: bool = False
    """Database and bus are not kept after the end: nothing waits for a disk."""
