"""Makes the passwords, keys and certificates of a compose cluster, and hands each container what it needs, no more.

    python make_secrets.py FOLDER --nodes node-0=agent-0,node-1=agent-1 [--renew [USER ...]]
        [--revoke NODE ...] [--restore NODE ...] [--renew-authority]
        [--reader-at FOLDER --reader-ports NATS,POSTGRES] [--head HOST --machines c=10.0.0.13]

Under FOLDER, each a volume of its own: `kept` has the passwords and keys themselves, and what is there stays, so that a
second start finds the same; `postgres`, `nats`, `migrate`, `operator`, one folder for each service and one for each
node (`agent-node-0`) hold what those containers see as /run/holdfast. They are written anew from `kept` each time.
`reader` is for tools outside of containers: a folder of the machine, which it knows as the one of --reader-at, and from
where NATS and Postgres are reached at --reader-ports of localhost. Its files belong to the folder's owner.

Other machines find NATS and Postgres at --head, at the same ports. Each node of --machines has a folder below
`machines`, to be copied to /etc/holdfast of that machine; its first host is the address at which others reach it.
`machines/operator` is for machines where people run commands (docs/many-machines.md).

A node stands with the hosts at which it is reached, if its name is none: NODE=HOST/HOST. Its certificate is for its
name and for them. A certificate is replaced when half its time is over, or when its hosts have changed.

With --renew these users (controller, analyzer, standby, ckpt, historian, operator, reader, or a node) get new passwords
and certificates, without a name all but the database's administrator. Then `migrate` sets the passwords of the
database, and a SIGHUP lets the new ones into NATS and cuts what was opened with the old; processes read their files
again by themselves. `admin` is the administrator: docs/compose.md has the step that follows. With --renew-authority
the authority is new, and with it all certificates: all must start again. A new node needs a start of NATS, or SIGHUP
twice.

A node of --revoke, or one that is left out of --nodes, is let in no more: by other vaults at once, by NATS from a
SIGHUP or start on. Later runs know of it, until --restore lets it in again, with a new password and certificate.

With --renew keys, or --renew without a name, services get new keys to sign orders, and agents recognize those before
too until this runs the next time: some seconds later at the earliest, when services have signed all orders again.
Processes read their keys for each order, and do not start again.
"""

import argparse
import os
from collections.abc import Callable, Container, Iterable
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

from holdfast.bus import accounts
from holdfast.cli.connect.reader import ROLE, ReaderAccess, settings_file
from holdfast.fresh_secrets import new_order_key, new_password
from holdfast.ids import checked_name
from holdfast.network.certificates import (
    CLIENT,
    SERVER,
    KeyPair,
    made_at,
    make_authority,
    make_certificate,
    needs_renewal,
)
from holdfast.network.refusals import Refusals
from holdfast.orders.signatures import SIGNERS, public_keys
from holdfast.settings.network import NetworkPolicy

FOLDERS = {
    "controller": "controller",
    "analyzer": "analyzer",
    "standby": "standby",
    "ckpt-coordinator": "ckpt",
    "historian": "historian",
}
"""Folder -> database role and user of the bus."""
SERVERS = ("nats", "postgres")
ADMIN = "admin"
"""Among the names to renew: the administrator of the database."""
KEYS = "keys"
"""Among the names to renew: the keys that sign orders."""
SERVER_PORTS = (4222, 5432)
READER_AT = Path("reader")
MACHINES = "machines"
ON_A_MACHINE = "/etc/holdfast"
"""Where a machine keeps the files of its folder."""
ON_THEIR_MACHINE = ("localhost", "127.0.0.1")


def write(path: Path, content: str | bytes, *, mode: int = 0o644) -> None:
    """Replace a file. Most can be read by all: the volume is the secret, only containers that mount it can read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        os.fchmod(file.fileno(), mode)
        file.write(content.encode() if isinstance(content, str) else content)
    os.replace(fresh, path)


def kept(path: Path, *, renew: bool, new: Callable[[], str] = new_password) -> str:
    if renew or not path.exists():
        write(path, new())
    return path.read_text()


def kept_pair(path: Path) -> KeyPair | None:
    try:
        return KeyPair(certificate=path.with_suffix(".pem").read_bytes(), key=path.with_suffix(".key").read_bytes())
    except FileNotFoundError:
        return None


def write_pair(path: Path, pair: KeyPair) -> None:
    write(path.with_suffix(".pem"), pair.certificate)
    # Programs refuse keys that others can read; containers read them as root.
    write(path.with_suffix(".key"), pair.key, mode=0o600)


def make_certificates(
    folder: Path, nodes: dict[str, list[str]], *, renew: Container[str], renew_authority: bool, head: str = ""
) -> None:
    """Give every folder `ca.pem`, and those of servers, nodes and clients of the bus their own `tls.pem`, `tls.key`."""
    now = datetime.now(UTC)
    at = folder / "kept" / "tls"
    authority = None if renew_authority else kept_pair(at / "authority")
    if authority is None:
        authority = make_authority("holdfast", now)
        write_pair(at / "authority", authority)
    wanted: dict[str, tuple[list[str], list[str]]] = {
        **{server: ([server, *ON_THEIR_MACHINE, *filter(None, [head])], [SERVER]) for server in SERVERS},
        **{client: ([], [CLIENT]) for client in (*FOLDERS, accounts.OPERATOR, accounts.READER)},
        **{accounts.node_user(node): ([node, *hosts], [SERVER, CLIENT]) for node, hosts in nodes.items()},
    }
    for name, (hosts, uses) in wanted.items():
        pair = kept_pair(at / name)
        if pair is None or FOLDERS.get(name, name) in renew or needs_renewal(pair, authority, hosts, now):
            pair = make_certificate(authority, name, hosts, now, uses=uses)
            write_pair(at / name, pair)
        write_pair(folder / name / "tls", pair)
    for name in (*wanted, "migrate"):
        write(folder / name / "ca.pem", authority.certificate)


def parsed_nodes(text: str) -> dict[str, list[str]]:
    """Read the nodes and their hosts. Raises ArgumentTypeError if a name cannot be one."""
    nodes = {}
    for part in filter(None, text.split(",")):
        node, _, hosts = part.partition("=")
        try:
            nodes[checked_name(node, "node")] = hosts.split("/") if hosts else []
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error
    return nodes


def who_could_pass_for_another(nodes: dict[str, list[str]], head: str = "") -> str:
    """Return why one of these nodes could pass for another process, else ""."""
    taken = {*SERVERS, *ON_THEIR_MACHINE, *filter(None, [head])}
    for node, hosts in nodes.items():
        own = {node, *hosts}
        if found := own & taken:
            return f"{min(found)} of node {node} is the host of another process, for which the node could pass"
        taken |= own
    return ""


def parsed_ports(text: str) -> tuple[int, int]:
    """Read two ports, separated by a comma."""
    bus, database = map(int, text.split(","))
    return bus, database


def make_order_keys(folder: Path, nodes: Iterable[str], *, renew: bool) -> dict[str, str]:
    """Return the private keys of the services, and give agents the public ones, with those that were just replaced."""
    own, retired = folder / "kept" / "orders", folder / "kept" / "retired_orders"
    if renew and own.exists():
        write(retired, public_keys({service: (own / service).read_text() for service in SIGNERS}))
    else:
        retired.unlink(missing_ok=True)
    keys = {service: kept(own / service, renew=renew, new=new_order_key) for service in SIGNERS}
    accepted = [public_keys(keys), *([retired.read_text()] if retired.exists() else [])]
    # Before services have the new keys: agents must recognize what is signed by them.
    for node in nodes:
        write(folder / accounts.node_user(node) / "orders.pub", "\n".join(accepted))
    return keys


def make_refusals(folder: Path, nodes: Iterable[str], *, renew: Container[str]) -> None:
    """Write the certificates that agents refuse: those of nodes that are left out, and those that were replaced."""
    tls, now = folder / "kept" / "tls", sorted(map(accounts.node_user, nodes))
    refused: dict[str, datetime | None] = {}
    for pair in sorted(tls.glob(f"{accounts.node_user('*')}.pem")):
        node, since = pair.stem.removeprefix(accounts.node_user("")), pair.with_suffix(".since")
        if pair.stem in renew:
            write(since, made_at(pair.read_bytes()).isoformat())
        if pair.stem not in now:
            refused[node] = None
        elif since.exists():
            refused[node] = datetime.fromisoformat(since.read_text())
    for user in now:
        write(folder / user / "refused", str(Refusals(refused)))


def revoked_nodes(folder: Path, *, revoke: Iterable[str], restore: Iterable[str]) -> set[str]:
    """Return the nodes that are revoked with these changes, which later runs know too."""
    place = folder / "kept" / "revoked"
    before = place.read_text().split() if place.exists() else []
    revoked = {*before, *revoke} - {*restore}
    if revoked != {*before}:
        write(place, "".join(f"{node}\n" for node in sorted(revoked)))
    return revoked


def write_reader(folder: Path, bus_password: str, password: str, place: Path, ports: tuple[int, int]) -> None:
    """Write what a tool on this machine needs: settings, and the same as variables of a shell."""
    bus, database = (f"localhost:{port}" for port in ports)
    authority = place / "ca.pem"
    access = ReaderAccess(
        nats_url=f"tls://{accounts.READER}:{bus_password}@{bus}",
        database_url=f"postgresql://{ROLE}:{password}@{database}/holdfast?sslmode=verify-full"
        f"&sslrootcert={quote(str(authority))}",
        network=NetworkPolicy(tls_ca=str(authority), tls_cert=str(place / "tls.pem"), tls_key=str(place / "tls.key")),
    )
    write(folder / "holdfast.toml", settings_file(access), mode=0o600)
    write(folder / "reader.env", access.exports(), mode=0o600)
    belong_to_owner_of(folder)


def write_machine(folder: Path, own: Path, urls: dict[str, str], variables: dict[str, str]) -> None:
    """Write what a process on another machine needs: its files of `own`, its addresses, and where all of that lies."""
    files = {"ca.pem": "TLS_CA", "tls.pem": "TLS_CERT", "tls.key": "TLS_KEY"}
    files |= {"refused": "TLS_REFUSED", "orders.pub": "ORDER_KEYS_FILE"}
    for name in files:
        if (file := own / name).exists():
            write(folder / name, file.read_bytes(), mode=0o600)
            variables[f"HOLDFAST_NETWORK_{files[name]}"] = f"{ON_A_MACHINE}/{name}"
    for name, url in urls.items():
        write(folder / f"{name}.url", url, mode=0o600)
        variables[f"HOLDFAST_{name.upper()}_URL_FILE"] = f"{ON_A_MACHINE}/{name}.url"
    write(folder / "holdfast.env", "".join(f"{name}={value}\n" for name, value in variables.items()), mode=0o600)


def belong_to_owner_of(folder: Path) -> None:
    """Give the files that containers write as root into a folder of this machine to the folder's owner."""
    owner = folder.stat()
    for file in folder.rglob("*"):
        if file.name != ".gitignore":
            os.chown(file, owner.st_uid, owner.st_gid)


def main(
    folder: Path,
    nodes: dict[str, list[str]],
    *,
    renew: Iterable[str],
    renew_authority: bool,
    revoke: Iterable[str] = (),
    restore: Iterable[str] = (),
    reader_at: Path = READER_AT,
    reader_ports: tuple[int, int] = SERVER_PORTS,
    head: str = "",
    machines: dict[str, list[str]] | None = None,
) -> None:
    """Make what is missing or to be renewed, and write what each container and each other machine sees."""
    revoked = revoked_nodes(folder, revoke=revoke, restore=restore)
    machines = {node: hosts for node, hosts in (machines or {}).items() if node not in revoked}
    nodes = {node: hosts for node, hosts in nodes.items() if node not in revoked} | machines
    renew = {*renew, *map(accounts.node_user, restore)}
    make_certificates(folder, nodes, renew=renew, renew_authority=renew_authority, head=head)
    make_refusals(folder, nodes, renew=renew)
    admin = kept(folder / "kept" / "postgres", renew=ADMIN in renew)
    bus = {user: kept(folder / "kept" / "bus" / user, renew=user in renew) for user in accounts.users(nodes)}
    roles = {
        role: kept(folder / "kept" / "roles" / role, renew=role in renew) for role in (*FOLDERS.values(), "reader")
    }
    order_keys = make_order_keys(folder, nodes, renew=KEYS in renew)

    def bus_url(user: str, server: str = "nats:4222") -> str:
        return f"tls://{user}:{bus[user]}@{server}"

    def database_url(user: str, password: str, server: str = "postgres:5432") -> str:
        return f"postgresql://{user}:{password}@{server}/holdfast?sslmode=verify-full"

    write(folder / "postgres" / "password", admin)
    write(folder / "nats" / "nats.conf", accounts.server_accounts(bus, nodes))
    write(folder / "migrate" / "admin.url", database_url("postgres", admin))
    for role, password in roles.items():
        write(folder / "migrate" / "roles" / role, password)
    for service, role in FOLDERS.items():
        write(folder / service / "nats.url", bus_url(role))
        write(folder / service / "database.url", database_url(f"holdfast_{role}", roles[role]))
        if role in order_keys:
            write(folder / service / "order.key", order_keys[role], mode=0o600)
    write(folder / "operator" / "nats.url", bus_url(accounts.OPERATOR))
    write(folder / "operator" / "database.url", database_url("holdfast_reader", roles["reader"]))
    write_reader(folder / accounts.READER, bus[accounts.READER], roles["reader"], reader_at, reader_ports)
    for node in nodes:
        user = accounts.node_user(node)
        write(folder / user / "nats.url", bus_url(user))
    if not head:
        return
    bus_at, database_at = (f"{head}:{port}" for port in reader_ports)
    for node, hosts in machines.items():
        user = accounts.node_user(node)
        own = {"NODE": node, "ADDRESS": (hosts or [node])[0]}
        write_machine(folder / MACHINES / node, folder / user, {"nats": bus_url(user, bus_at)}, own)
    urls = {
        "nats": bus_url(accounts.OPERATOR, bus_at),
        "database": database_url("holdfast_reader", roles["reader"], database_at)
        + f"&sslrootcert={quote(f'{ON_A_MACHINE}/ca.pem')}",
    }
    write_machine(folder / MACHINES / accounts.OPERATOR, folder / accounts.OPERATOR, urls, {})
    belong_to_owner_of(folder / MACHINES)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nodes", required=True, type=parsed_nodes, help="names of the nodes (and =HOST), with commas")
    parser.add_argument(
        "--renew", nargs="*", metavar="USER", help="replace passwords and certificates of these users, or everything"
    )
    parser.add_argument("--revoke", nargs="+", default=[], metavar="NODE", help="let these nodes in no more")
    parser.add_argument("--restore", nargs="+", default=[], metavar="NODE", help="let these revoked nodes in again")
    parser.add_argument("--renew-authority", action="store_true", help="replace the authority and its certificates")
    parser.add_argument("--reader-at", type=Path, default=READER_AT, help="folder `reader`, as this machine names it")
    parser.add_argument(
        "--reader-ports", type=parsed_ports, default=SERVER_PORTS, help="ports of NATS and Postgres on this machine"
    )
    parser.add_argument("--head", default="", help="host at which other machines reach NATS and Postgres")
    parser.add_argument(
        "--machines", default={}, type=parsed_nodes, help="nodes on other machines (and =HOST), with commas"
    )
    asked = parser.parse_args()
    if asked.machines and not asked.head:
        parser.error("--machines needs --head: the address at which these machines reach NATS")
    if both := asked.nodes.keys() & asked.machines.keys():
        parser.error(f"{min(both)} is a node of --nodes and of --machines")
    if why := who_could_pass_for_another(asked.nodes | asked.machines, asked.head):
        parser.error(why)
    named = (
        {name: name for name in accounts.users(())}
        | {node: accounts.node_user(node) for node in (*asked.nodes, *asked.machines)}
        | {KEYS: KEYS, ADMIN: ADMIN}
    )
    if unknown := [name for name in asked.renew or () if name not in named]:
        parser.error(f"there is no user {unknown[0]!r}; the users are {', '.join(named)}")
    all_nodes = (*asked.nodes, *asked.machines)
    if unknown := [node for node in (*asked.revoke, *asked.restore) if node not in all_nodes]:
        parser.error(f"there is no node {unknown[0]!r}; the nodes are {', '.join(all_nodes)}")
    everyone = {*named.values(), *SERVERS} - {ADMIN}
    renewed = everyone if asked.renew == [] else {named[name] for name in asked.renew or ()}
    main(
        asked.folder,
        asked.nodes,
        renew=renewed,
        renew_authority=asked.renew_authority,
        revoke=asked.revoke,
        restore=asked.restore,
        reader_at=asked.reader_at,
        reader_ports=asked.reader_ports,
        head=asked.head,
        machines=asked.machines,
    )
