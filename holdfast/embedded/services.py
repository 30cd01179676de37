"""The services and agents of an embedded cluster, as children of the supervisor."""

import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from holdfast.daemon.gate import GATE_VARIABLE
from holdfast.daemon.nursery import NURSERY_VARIABLE
from holdfast.daemon.orders.order_keys import PRIVATE_VARIABLE, PUBLIC_VARIABLE
from holdfast.daemon.process import leave_limit_s
from holdfast.daemon.ready import READY_FD_VARIABLE
from holdfast.embedded import fabric
from holdfast.embedded.configuration import CONFIG_VARIABLE, FILE_SUFFIX, Configuration
from holdfast.embedded.errors import EmbeddedError
from holdfast.embedded.layout import SERVICES, ClusterInfo, ClusterLayout
from holdfast.embedded.processes.children import ChildSpec
from holdfast.embedded.processes.proctree import NODE_VARIABLE
from holdfast.embedded.servers.postgres import START_S_MAX as DATABASE_START_S_MAX
from holdfast.network.trust import PLAIN_TEXT
from holdfast.node.rank_variables import SHARED_MACHINE
from holdfast.orders.signatures import SIGNERS
from holdfast.settings.load import Setting, variable_of
from holdfast.store.migrations_place import migrations_digest

NATS_VARIABLE = "HOLDFAST_NATS_URL"
DATABASE_VARIABLE = "HOLDFAST_DATABASE_URL"

SERVICE_START_S_MAX = 60.0
AGENT_START_S_MAX = 60.0
"""Limits of starts. Services wait for the servers, agents for the services: see `holdfast.daemon.gate`."""

LATE = frozenset({"analyzer", "historian"})
"""Services that judge and record what ranks do. In a cluster for one run they start once nothing waits any more, and
find what happened before on the bus."""

KILL_AFTER_S = 5.0
"""Time after a daemon's own limit for stopping until it is killed."""


def service_specs(configuration: Configuration, layout: ClusterLayout) -> list[ChildSpec]:
    return [
        ChildSpec(
            name=service,
            # -P: a user's file named logging.py, for example, must not replace a module.
            argv=(sys.executable, "-P", "-m", f"holdfast_{service}"),
            imports=f"holdfast_{service}.main",
            environment=base_environment()
            | configuration.environment()
            | {
                NATS_VARIABLE + FILE_SUFFIX: str(layout.bus_address(service)),
                DATABASE_VARIABLE + FILE_SUFFIX: str(layout.database_address(service)),
                GATE_VARIABLE: str(layout.service_gate),
            }
            | ({PRIVATE_VARIABLE + FILE_SUFFIX: str(layout.order_key(service))} if service in SIGNERS else {}),
            directory=layout.root,
            start_limit_s=DATABASE_START_S_MAX + SERVICE_START_S_MAX,
            stop_grace_s=leave_limit_s(configuration.timeouts) + KILL_AFTER_S,
        )
        for service in SERVICES
    ]


def nursery_spec(configuration: Configuration, layout: ClusterLayout, *, for_one_run: bool = False) -> ChildSpec:
    """Return the process that imports torch once for all agents, and forks their zygotes."""
    flags = ("--socket", str(layout.nursery_socket), *(("--brief",) if for_one_run else ()))
    return ChildSpec(
        name="nursery",
        argv=(sys.executable, "-P", "-m", "holdfast_agent.zygote.nursery", *flags),
        environment=base_environment() | configuration.environment(),
        directory=layout.root,
    )


def agent_spec(configuration: Configuration, layout: ClusterLayout, info: ClusterInfo, node: str) -> ChildSpec:
    """Return the agent of one node. It knows the bus but not the database, as on a separate machine. A `holdfast.toml`
    in the node's directory replaces the cluster's: machines differ, above all in their devices.
    """
    prefix: tuple[str, ...] = ()
    flags: tuple[str, ...] = ("--node", node, "--state-dir", str(layout.node(node)))
    network = {NURSERY_VARIABLE: _given_nursery() or str(layout.nursery_socket)}
    if info.fabric is not None:
        # Everything of the node is started by its agent, and so in its namespace.
        prefix = fabric.inside(info.fabric, node)
        flags += ("--address", info.fabric.address(node))
        users = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", variable_of("inspections.interfaces"))
        # Between the namespaces lies only this machine's bridge, and the nodes have no certificates.
        network |= dict.fromkeys(users, fabric.DEVICE) | {variable_of(f"network.{PLAIN_TEXT}"): "true"}
    return ChildSpec(
        name=node,
        argv=(*prefix, sys.executable, "-P", "-m", "holdfast_agent", *flags),
        imports="" if prefix else "holdfast_agent.main",
        environment=base_environment()
        | configuration.environment()
        | ({CONFIG_VARIABLE: str(own)} if (own := layout.node_settings(node)).is_file() else {})
        | network
        | {
            NATS_VARIABLE + FILE_SUFFIX: str(layout.bus_address(node)),
            PUBLIC_VARIABLE + FILE_SUFFIX: str(layout.order_keys),
            variable_of("network.tls_refused"): str(layout.refused_nodes),
            NODE_VARIABLE: str(layout.node(node)),
            GATE_VARIABLE: str(layout.agent_gate),
        }
        | ({SHARED_MACHINE: "1"} if len(info.nodes) > 1 else {}),
        directory=layout.root,
        start_limit_s=DATABASE_START_S_MAX + SERVICE_START_S_MAX + AGENT_START_S_MAX,
        stop_grace_s=leave_limit_s(configuration.timeouts) + KILL_AFTER_S,
        # If the supervisor dies, the agents stop their ranks instead of leaving them unsupervised.
        death_signal=signal.SIGTERM,
    )


def _given_nursery() -> str:
    """Return the socket of a nursery that runs on this machine already and is shared; "": this cluster has its own."""
    return os.environ.get(NURSERY_VARIABLE, "")


def base_environment() -> dict[str, str]:
    """Return the user's environment without the addresses, keys and markers of another cluster.

    A setting that is read from a file (`_FILE`) names it by an absolute path: a child works in another directory.
    """
    own = (NATS_VARIABLE, DATABASE_VARIABLE, PRIVATE_VARIABLE, PUBLIC_VARIABLE)
    foreign = {
        *own,
        *(name + FILE_SUFFIX for name in own),
        NODE_VARIABLE,
        READY_FD_VARIABLE,
        NURSERY_VARIABLE,
        GATE_VARIABLE,
    }
    environment = {name: value for name, value in os.environ.items() if name not in foreign}
    for name, value in environment.items():
        if name.startswith("HOLDFAST_") and name.endswith(FILE_SUFFIX):
            environment[name] = os.path.abspath(value)
    return environment | {"PYTHONUNBUFFERED": "1"}


@dataclass(frozen=True, kw_only=True)
class ClusterPlan:
    """The processes that the supervisor runs besides its two servers. `migrate(admin_url, role_passwords)` brings the
    database up to date; it blocks, and is called in a thread. `role_passwords` maps role names (`holdfast_controller`,
    ..., `holdfast_reader`) to their passwords. Services and agents find theirs in the files of their addresses
    (`layout.bus_address`, `layout.database_address`). `settings` are the children's, for display.
    """

    migrate: Callable[[str, dict[str, str]], None]
    early: Callable[[ClusterLayout, ClusterInfo], list[ChildSpec]]
    """Processes that need neither server. They start first, because they take longest."""
    services: Callable[[ClusterLayout, ClusterInfo], list[ChildSpec]]
    agent: Callable[[ClusterLayout, ClusterInfo, str], ChildSpec]
    database_made_by: str = ""
    """Name under which a copy of a freshly migrated database is kept, for the next new database; "": no copy is
    kept."""
    late: frozenset[str] = frozenset()
    """Services that start when all others are ready."""
    settings: tuple[Setting, ...] = ()
    passage_gid: int | None = None
    """The group by which ranks pass to their node's directory; None: they run as the cluster's user."""


def cluster_plan(configuration: Configuration, *, for_one_run: bool = False) -> ClusterPlan:
    """Return the processes of a cluster. One `for_one_run` is ready as soon as a job can begin."""

    def early(layout: ClusterLayout, info: ClusterInfo) -> list[ChildSpec]:
        return [] if _given_nursery() else [nursery_spec(configuration, layout, for_one_run=for_one_run)]

    return ClusterPlan(
        migrate=_migrate,
        database_made_by=migrations_digest(),
        early=early,
        late=LATE if for_one_run else frozenset(),
        services=lambda layout, info: service_specs(configuration, layout),
        agent=partial(agent_spec, configuration),
        settings=configuration.settings,
        passage_gid=configuration.passage_gid,
    )


def _migrate(admin_url: str, role_passwords: dict[str, str]) -> None:
    # Imported here: it takes as long as all that a supervisor needs before it starts its children.
    from holdfast.store.upgrade.blockers import HeldUp
    from holdfast.store.upgrade.migrate import UnknownRevision, migrate

    try:
        migrate(admin_url, role_passwords)
    except (UnknownRevision, HeldUp) as error:
        raise EmbeddedError(f"the database cannot be upgraded: {error}") from error
