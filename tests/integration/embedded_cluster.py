"""A cluster for the tests: the real supervisor, Postgres and NATS, and small children in place of the services.

python embedded_cluster.py DIR [--nodes N] [--detach] [--postgres-port P] [--broken] [--new-passwords]
"""

import argparse
import asyncio
import hashlib
import sys
from pathlib import Path

import asyncpg

from holdfast.daemon.gate import GATE_VARIABLE
from holdfast.embedded.errors import EmbeddedError
from holdfast.embedded.launch import run_detached, run_foreground
from holdfast.embedded.layout import ClusterInfo, ClusterLayout
from holdfast.embedded.options import ClusterOptions
from holdfast.embedded.processes.children import ChildSpec
from holdfast.embedded.processes.proctree import NODE_VARIABLE
from holdfast.embedded.servers.credentials import processes, roles_of
from holdfast.embedded.services import ClusterPlan, base_environment

MADE_BY = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
"""One database is made for all of these clusters, as for real ones: that takes longer than all else they do."""

CHILDREN = str(Path(__file__).with_name("embedded_children.py"))


def migrate(admin_url: str, role_passwords: dict[str, str]) -> None:
    """Create the roles, as the real migrations do first."""
    asyncio.run(_create_roles(admin_url, role_passwords))


async def _create_roles(admin_url: str, role_passwords: dict[str, str]) -> None:
    connection = await asyncpg.connect(admin_url)
    for role in roles_of(processes([])):
        if not await connection.fetchval("select true from pg_roles where rolname = $1", role):
            await connection.execute(f"create role {role} login")
    for role, password in role_passwords.items():
        await connection.execute(f"alter role {role} password '{password}'")
    await connection.execute("create table if not exists kept (note text)")
    await connection.close()


def services(layout: ClusterLayout, info: ClusterInfo) -> list[ChildSpec]:
    return [_service(layout, "service")]


def early(layout: ClusterLayout, info: ClusterInfo) -> list[ChildSpec]:
    """A child that needs neither server, in place of the nursery."""

    async def at_once() -> None:
        """It is ready without a word."""

    return [ChildSpec(name="nursery", argv=("sleep", "1000"), environment={}, directory=layout.root, probe=at_once)]


def broken_services(layout: ClusterLayout, info: ClusterInfo) -> list[ChildSpec]:
    return [_service(layout, "fail")]


def _service(layout: ClusterLayout, program: str) -> ChildSpec:
    addresses = {
        "HOLDFAST_NATS_URL_FILE": str(layout.bus_address("controller")),
        "HOLDFAST_DATABASE_URL_FILE": str(layout.database_address("controller")),
        "HOLDFAST_NETWORK_ORDER_KEY_FILE": str(layout.order_key("controller")),
        GATE_VARIABLE: str(layout.service_gate),
    }
    return ChildSpec(
        name="controller",
        argv=(sys.executable, CHILDREN, program),
        environment=base_environment() | addresses,
        directory=layout.root,
    )


def agent(layout: ClusterLayout, info: ClusterInfo, node: str) -> ChildSpec:
    directory = str(layout.node(node))
    return ChildSpec(
        name=node,
        argv=(sys.executable, CHILDREN, "agent", directory),
        environment=base_environment() | {NODE_VARIABLE: directory},
        directory=layout.root,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("--nodes", type=int)
    parser.add_argument("--postgres-port", type=int)
    parser.add_argument("--detach", action="store_true")
    parser.add_argument("--broken", action="store_true")
    parser.add_argument("--new-passwords", action="store_true")
    asked = parser.parse_args()
    layout = ClusterLayout(asked.directory)
    chosen = broken_services if asked.broken else services
    plan = ClusterPlan(migrate=migrate, database_made_by=MADE_BY, early=early, services=chosen, agent=agent)
    options = ClusterOptions(nodes=asked.nodes, postgres_port=asked.postgres_port, new_passwords=asked.new_passwords)

    def tell(line: str) -> None:
        print(line, flush=True)

    try:
        if asked.detach:
            print("pid", run_detached(layout, plan, options, tell, wait=True))
        else:
            run_foreground(layout, plan, options, tell, lambda info: tell("READY"))
    except EmbeddedError as error:
        sys.exit(f"Error: {error}")


if __name__ == "__main__":
    main()
