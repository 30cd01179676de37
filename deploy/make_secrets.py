"""Makes the passwords of a compose cluster, once, and hands each container those that it needs and no others.

    python make_secrets.py FOLDER

Under FOLDER, each a volume of its own: `kept` has the passwords themselves, and what is there stays, so that a second
start finds the same; `postgres`, `nats`, `migrate`, `agents` and one folder for each service hold what those containers
see as /run/holdfast. They are written anew from `kept` each time.
"""

import os
import secrets
import sys
from pathlib import Path

SERVICES = {
    "controller": "controller",
    "analyzer": "analyzer",
    "standby": "standby",
    "ckpt-coordinator": "ckpt",
    "historian": "historian",
    "agents": "reader",
}
"""Folder -> database role."""


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(text)
    os.chmod(fresh, 0o644)  # the volume is the secret: only containers that mount it can read
    os.replace(fresh, path)


def kept(path: Path) -> str:
    if not path.exists():
        write(path, secrets.token_urlsafe(24))
    return path.read_text()


def main(folder: Path) -> None:
    admin = kept(folder / "kept" / "postgres")
    nats = kept(folder / "kept" / "nats")
    roles = {role: kept(folder / "kept" / "roles" / role) for role in SERVICES.values()}
    write(folder / "postgres" / "password", admin)
    write(folder / "nats" / "nats.conf", f'authorization {{ user: "holdfast", password: "{nats}" }}\n')
    write(folder / "migrate" / "admin.url", f"postgresql://postgres:{admin}@postgres:5432/holdfast")
    for role, password in roles.items():
        write(folder / "migrate" / "roles" / role, password)
    for service, role in SERVICES.items():
        write(folder / service / "nats.url", f"nats://holdfast:{nats}@nats:4222")
        write(folder / service / "database.url", f"postgresql://holdfast_{role}:{roles[role]}@postgres:5432/holdfast")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
