"""Which services and agents make up the cluster, as children of the supervisor."""

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.embedded.announce import READY_FD_VARIABLE
from holdfast.embedded.children import ChildSpec
from holdfast.embedded.layout import SERVICES, ClusterInfo, Layout
from holdfast.embedded.proctree import NODE_VARIABLE

NATS_VARIABLE = "HOLDFAST_NATS_URL"
DATABASE_VARIABLE = "HOLDFAST_DATABASE_URL"


def service_specs(layout: Layout, info: ClusterInfo) -> list[ChildSpec]:
    """One child per service, each with the database URL of its own role."""
    return [
        ChildSpec(
            name=service,
            # -P: a file of the user's that happens to be called logging.py must not replace ours.
            argv=(sys.executable, "-P", "-m", f"holdfast_{service}"),
            environment=base_environment()
            | {NATS_VARIABLE: info.nats_url, DATABASE_VARIABLE: info.database_urls[service]},
            directory=layout.root,
            # Longer than the grace that a daemon gives itself (holdfast.process).
            stop_grace_s=15.0,
        )
        for service in SERVICES
    ]


def agent_spec(layout: Layout, info: ClusterInfo, node: str) -> ChildSpec:
    """The agent of one node. It knows the bus and not the database, as on a machine of its own."""
    return ChildSpec(
        name=node,
        argv=(
            sys.executable,
            *("-P", "-m", "holdfast_agent", "--node", node, "--state-dir", str(layout.node(node))),
        ),
        environment=base_environment() | {NATS_VARIABLE: info.nats_url, NODE_VARIABLE: str(layout.node(node))},
        directory=layout.root,
        # It stops its ranks first.
        stop_grace_s=20.0,
        # Should the supervisor die, the agents end their ranks instead of leaving them to nobody.
        death_signal=signal.SIGTERM,
    )


def base_environment() -> dict[str, str]:
    """The user's environment without the addresses and markers of another cluster."""
    foreign = (NATS_VARIABLE, DATABASE_VARIABLE, NODE_VARIABLE, READY_FD_VARIABLE)
    return {name: value for name, value in os.environ.items() if name not in foreign} | {"PYTHONUNBUFFERED": "1"}


@dataclass(frozen=True, kw_only=True)
class ClusterPlan:
    """What the supervisor runs besides its two servers.

    `migrate(admin_url, role_passwords)` brings the database up to date; it blocks, and is called in a thread.
    `role_passwords` maps role names (`holdfast_controller`, ..., `holdfast_reader`) to their passwords.
    """

    migrate: Callable[[str, dict[str, str]], None]
    services: Callable[[Layout, ClusterInfo], list[ChildSpec]] = service_specs
    agent: Callable[[Layout, ClusterInfo, str], ChildSpec] = agent_spec
