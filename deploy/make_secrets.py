"""Makes the passwords of a compose cluster, once, and hands each container those that it needs and no others.

    python make_secrets.py FOLDER --nodes node-0,node-1 [--renew]

Under FOLDER, each a volume of its own: `kept` has the passwords themselves, and what is there stays, so that a second
start finds the same; `postgres`, `nats`, `migrate`, `operator`, one folder for each service and one for each node
(`agent-node-0`) hold what those containers see as /run/holdfast. They are written anew from `kept` each time.

With --renew all passwords are new but that of the database's administrator; `migrate` and then all others must start
again. A node that is left out of --nodes is let in no more once NATS has started again or got a SIGHUP. A new
node needs a start of NATS, or SIGHUP twice.
"""

import argparse
import os
import secrets
from pathlib import Path

from holdfast.bus import accounts
from holdfast.ids import checked_name

FOLDERS = {
    "controller": "controller",
    "analyzer": "analyzer",
    "standby": "standby",
    "ckpt-coordinator": "ckpt",
    "historian": "historian",
}
"""Folder -> database role and user of the bus."""


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(text)
    os.chmod(fresh, 0o644)  # the volume is the secret: only containers that mount it can read
    os.replace(fresh, path)


def kept(path: Path, *, renew: bool) -> str:
    if renew or not path.exists():
        write(path, secrets.token_urlsafe(24))
    return path.read_text()


def main(folder: Path, nodes: list[str], *, renew: bool) -> None:
    admin = kept(folder / "kept" / "postgres", renew=False)
    bus = {user: kept(folder / "kept" / "bus" / user, renew=renew) for user in accounts.users(nodes)}
    roles = {role: kept(folder / "kept" / "roles" / role, renew=renew) for role in (*FOLDERS.values(), "reader")}

    def bus_url(user: str) -> str:
        return f"nats://{user}:{bus[user]}@nats:4222"

    def database_url(role: str) -> str:
        return f"postgresql://holdfast_{role}:{roles[role]}@postgres:5432/holdfast"

    write(folder / "postgres" / "password", admin)
    write(folder / "nats" / "nats.conf", accounts.server_accounts(bus, nodes))
    write(folder / "migrate" / "admin.url", f"postgresql://postgres:{admin}@postgres:5432/holdfast")
    for role, password in roles.items():
        write(folder / "migrate" / "roles" / role, password)
    for service, role in FOLDERS.items():
        write(folder / service / "nats.url", bus_url(role))
        write(folder / service / "database.url", database_url(role))
    write(folder / "operator" / "nats.url", bus_url(accounts.OPERATOR))
    write(folder / "operator" / "database.url", database_url("reader"))
    write(folder / "operator" / "reader.url", bus_url(accounts.READER))
    for node in nodes:
        user = accounts.node_user(node)
        write(folder / user / "nats.url", bus_url(user))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nodes", required=True, help="names of the nodes, separated by commas")
    parser.add_argument("--renew", action="store_true", help="replace the passwords")
    asked = parser.parse_args()
    main(asked.folder, [checked_name(node, "node") for node in asked.nodes.split(",")], renew=asked.renew)
