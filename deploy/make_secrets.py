"""Makes the passwords and addresses of a compose cluster, once, into a folder that only its containers see.

    python make_secrets.py FOLDER

Files: `postgres-password`, `nats.conf` (authorization), `nats.url`, `admin.url`, and for each role a password under
`roles/` and an address `<role>.url`. What exists is kept, so that a second start finds the same passwords.
"""

import os
import secrets
import sys
from pathlib import Path

ROLES = ("controller", "analyzer", "standby", "ckpt", "historian", "reader")


def kept(path: Path, make: str) -> str:
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_suffix(".new")
        fresh.write_text(make)
        os.chmod(fresh, 0o644)  # the folder is the secret: only containers that mount it can read
        os.replace(fresh, path)
    return path.read_text()


def main(folder: Path) -> None:
    admin = kept(folder / "postgres-password", secrets.token_urlsafe(24))
    kept(folder / "admin.url", f"postgresql://postgres:{admin}@postgres:5432/holdfast")
    for role in ROLES:
        password = kept(folder / "roles" / role, secrets.token_urlsafe(24))
        kept(folder / f"{role}.url", f"postgresql://holdfast_{role}:{password}@postgres:5432/holdfast")
    nats = kept(folder / "nats-password", secrets.token_urlsafe(24))
    kept(folder / "nats.url", f"nats://holdfast:{nats}@nats:4222")
    kept(folder / "nats.conf", f'authorization {{ user: "holdfast", password: "{nats}" }}\n')


if __name__ == "__main__":
    main(Path(sys.argv[1]))
