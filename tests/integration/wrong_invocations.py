"""Wrong invocations of every command, by the words that its message must contain. Paths are those of `make_files`."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from holdfast.cli.main import COMMANDS

DATABASE = "--database-url postgresql://x:y@127.0.0.1:1/h"
BUS = "--nats-url nats://127.0.0.1:1"
LONG = "x" * 5000
EXPORT = "--path dir --to out --format safetensors"

WRONG = {
    "No such command": ["nosuch", "ckpt nosuch", "credentials nosuch"],
    "Missing argument": [
        *("run", "attach", "stop", "update", "rollback", "versions", "show", "explain", "breaker reset", "xid"),
        *(
            "analyze",
            "ping",
            "credentials keys",
            "hang",
            "slow",
            "nodes poweroff",
            "nodes poweron",
            "credentials revoke",
            "credentials restore",
            "ckpt export",
            "ckpt import",
            "ckpt plan",
        ),
        *("versions x diff 1", "versions x export 1"),
    ],
    "Missing option": [
        *("migrate", "update x", "ckpt export newest nosuch", "ckpt import dir --path dir", f"migrate {DATABASE}"),
    ],
    "unexpected extra argument": ["up extra", "down extra", "status extra", "doctor extra", "show x y"],
    "No such option": ["xid -5", "ckpt ls --nope", "nodes add --nope", "breaker show --nope", "credentials -x"],
    "File name too long": [f"run {LONG}", f"nodes add --dir {LONG}", f"credentials revoke x --dir {LONG}"],
    "no UTF-8": ["run train.py \udcff", "run --python \udcff train.py"],
    "Usage:": ["ckpt", "telemetry"],
    "give one USER or more, or --all": ["credentials renew", "credentials renew node-0 --all"],
    "is not in the range": [
        *("up --nodes 0", "up --nodes -1", "up --nodes 1001", "up --nodes 99999999999999999999"),
        *("up --nats-port 0", "up --postgres-port 70000", "down --timeout -1", "down --timeout 86401"),
        *("logs x --rank -1", "logs x -n -1", "inject kill-rank --rank -1"),
        *("jobs --limit 0", "incidents --limit 0", "sql --limit 0"),
        *(
            "ckpt verify --path dir --step -1",
            "ckpt verify --path dir --threads 0",
            "ckpt import dir --path dir --step 0",
        ),
        *("diagnose --workers -1", "diagnose --limit-s 0", "analyze junk.json --ranks-per-node 0"),
        *(
            "config --step-s 0",
            "config --step-s -1",
            f"ping x {BUS} --timeout-s 0",
            f"ping x {BUS} --wait --timeout-s -1",
            "ckpt verify --path dir --threads 65",
        ),
    ],
    "is not a whole number": [
        *("up --nodes x", "up --nodes ١", "up --nodes 1_0", "up --nodes 1.5"),
        *("jobs --limit ٣", "logs x --rank x", "inject kill-rank --rank ٠"),
        *("ckpt import dir --path dir --step ١", "analyze junk.json --ranks-per-node x", "up --nats-port ٤٢٢٢"),
    ],
    "is no number of nodes": [f"run --nnodes {text} t.py" for text in ("0", "-1", "١", "x", "''", "1:", "2:1")],
    "is no number of ranks": [f"run --nproc-per-node {text} t.py" for text in ("0", "-1", "١", "x", "''", "1.5")],
    "is too large": [
        *("jobs --limit 99999999999999999999999", "logs x --rank 99999999999999999999999", "config --step-s 1e999"),
        "ckpt verify --path dir --step 4294967296",
    ],
    "is too long": ["update x --from . --within 1000d"],
    "is not a number": [
        *("config --step-s nan", "config --step-s inf", "config --step-s x", "config --step-s ١", "down --timeout nan"),
        *("down --timeout inf", "diagnose --limit-s nan", "diagnose --limit-s inf", f"ping x {BUS} --timeout-s nan"),
    ],
    "is not a duration": [
        *("inject kill-rank --for nan", "inject kill-rank --for 0s", "inject kill-rank --for ١s"),
        *("update x --from . --within 0s", "update x --from . --within ''", "telemetry train --since x"),
        *("telemetry train --since ٢d", "telemetry train --since 9999999999d", "telemetry train --since -1d"),
    ],
    "is not a size": [
        f"ckpt export newest {EXPORT} --max-shard-size {size}" for size in ("0", "nan", "١GB", "-1", "''")
    ],
    "is no distance of checkpoints": [
        f"run --persist-every {text} t.py" for text in ("x", "0", "-1", "١m", "nan", "1d")
    ],
    "is not a valid name": [
        *("run --name 'a b' t.py", "run --name é t.py", "run --name ../x t.py", "run --name a- t.py"),
        *("attach 'x y'", "jobs 'x y'", "stop 'x y'", "rollback 'x y'", "versions 'x y'", "hang 'a b'", "slow 'a b'"),
        *("ckpt plan 'a b'", "ckpt plan x --lost 'a b'", "ckpt plan x --lost ,", "ckpt plan ''"),
        *("update 'x y' --from dir", "ckpt ls 'a b'", "ckpt verify ../x", "breaker reset 'a b'", "nodes release ../x"),
        *("nodes release ''", f"ping 'a b' {BUS}", f"ping '' {BUS}", "stop ''", "attach ''", "jobs ''"),
    ],
    "is empty": [
        *("run --name '' t.py", "run --mesh '' t.py", "run --code '' t.py", "run --training-log '' t.py"),
        *("run --job-dir '' t.py", "up --dir ''", "config --config ''", "ckpt ls --path ''", "rollback x --to ''"),
        *(
            "inspect --config ''",
            "status --dir ''",
            "doctor --dir ''",
            "update x --from ''",
            "ckpt import '' --path dir --step 1",
        ),
    ],
    "not the name of a variable": [
        *("run -e 'A B=1' t.py", "run -e 1A=1 t.py", "run -e 'A\n=1' t.py", "run -e é=1 t.py", "run -e 'A;B=1' t.py"),
    ],
    "--env": ["run -e =1 t.py", "run -e '' t.py", "run -e NO_SUCH_VARIABLE t.py", "run -e RANK=1 t.py"],
    "not the name of a module": [f"run -m {name}" for name in ("'no such'", "''", "a/b", ".x", "x.", "a..b")],
    "there is no script": ["run nosuch.py", "run dir", "run ''"],
    "mesh": [
        *("run --mesh dp=١ t.py", "run --mesh dp=2 t.py", "run --mesh dp=0 t.py", "run --mesh dp=-1 t.py"),
        *("run --mesh dp=99999999999999999999 t.py", "run --mesh dp=1,dp=1 t.py", "run --mesh 'd p=1' t.py"),
        *("run --mesh , t.py", "run --mesh dp t.py", "run --mesh =1 t.py", "analyze junk.json --mesh dp=0"),
        *("analyze junk.json --order x", "run --mesh dp=1_0 t.py"),
    ],
    "over the limit": ["run --nnodes 2000000 t.py", "run --nnodes 2000 --nproc-per-node 2000 t.py"],
    "a tag": ["run --tag x t.py", "run --tag loss= t.py", "run --tag foo=bar t.py", "run --tag '' t.py"],
    "is not one of": [
        *("run --start x t.py", "diagnose --suite x", "ckpt export newest --path dir --to out --format xyz"),
    ],
    "not below it": ["run --code nosuch t.py", "run --code dir t.py", "run --code loop t.py"],
    "nothing can be written there": [
        *("run --job-dir t.py/x t.py", "run --job-dir /proc/x t.py", "run --job-dir loop/x t.py"),
    ],
    "lies on a disk that all of its nodes reach": [
        *("run --job-dir s3://bucket/x t.py", "run --job-dir file:///x t.py", "run --job-dir gs:// t.py"),
    ],
    "symbolic links": [
        f"{command} --dir loop" for command in ("down", "status", "doctor", "config", "logs x", "sql x")
    ],
    "is a device": ["classify /dev/zero"],
    "is longer than": ["config --config /dev/zero", "run --env-file /dev/zero t.py"],
    "has a NUL byte": ["run --env-file zero t.py"],
    "is not UTF-8": [
        *("up --config latin.toml --dir c", "config --config latin.toml", "config --config binary"),
        "inspect --config latin.toml",
    ],
    "cannot read": [
        *("up --config nosuch.toml --dir c", "config --config nosuch.toml", "config --config broken.toml"),
        *("config --config deep.toml", "up --config digits.toml --dir c"),
        *(
            "up --config broken.toml --dir c",
            f"migrate {DATABASE} --passwords dir",
            f"migrate {DATABASE} --passwords odd",
        ),
    ],
    "unknown setting": [
        *("config --config unknown.toml", "up --config unknown.toml --dir c", "config --config type.toml"),
        *("config extra", "config timeouts.nix", "config ''"),
    ],
    "must be at least": ["config --config nan.toml", "up --config nan.toml --dir c"],
    "is a directory": ["config --config dir", "up --config dir --dir c", "inspect --config dir"],
    "is a file": [
        *("up --dir t.py", "down --dir t.py", "run --dir t.py t.py", "nodes add --dir t.py", "update x --from t.py"),
    ],
    "does not exist": [
        *("update x --from nosuch", f"migrate {DATABASE} --passwords nosuch", "ckpt import nosuch --path dir --step 1"),
    ],
    "cannot keep the cluster's state": ["up --dir t.py/x", "up --dir /proc/nope", "up --dir loop"],
    "is damaged": [
        f"{command} --dir broken" for command in ("down", "status", "doctor", "config", "logs x", "inject kill-rank")
    ],
    "cannot be read: Is a directory": [
        f"{command} --dir gone" for command in ("down", "status", "doctor", "config", "sql")
    ],
    "no cluster": [
        *("down", "status", "logs", "nodes", "nodes poweroff n1", "nodes poweron n1", "nodes add", "inject kill-rank"),
        *(
            "ping x",
            "breaker show",
            "attach x",
            "jobs",
            "stop x",
            "sql x",
            "incidents",
            "versions x",
        ),
        *("credentials", "credentials renew --all", "credentials revoke node-0", "credentials restore node-0"),
        *(
            "ckpt export newest nosuch --to out --format dcp",
            "ckpt verify nosuch",
            "ckpt plan nosuch",
            "doctor",
            "ckpt ls nosuch",
            "hang x",
            "slow x",
        ),
    ],
    "cannot reach the database": [
        *(
            f"{command} {DATABASE}"
            for command in ("nodes", "jobs", "incidents", "sql x", "ckpt plan x", "breaker show", "telemetry models")
        ),
    ],
    "cannot be upgraded": [f"migrate {DATABASE} --passwords roles"],
    "is not an address of Postgres": [
        "nodes --database-url nonsense",
        *(f"migrate --database-url {url} --passwords roles" for url in ("nonsense", "''", "mysql://x/y")),
    ],
    "plain_text = true": [
        *(
            f"{command} --database-url postgresql://x:y@192.0.2.1/h"
            for command in ("nodes", "migrate --passwords roles", "backup new", "restore t.py --yes", "sql x")
        ),
        "attach x --database-url postgresql://x:y@192.0.2.1/h --nats-url nats://127.0.0.1:1",
        "stop x --nats-url nats://192.0.2.1",
    ],
    "is not an address of NATS": [
        *(f"ping x --nats-url {url}" for url in ("nonsense://", "nats://127.0.0.1:99999", "nats://", "'nats://a b'")),
        *(f"{command} {DATABASE} --nats-url nats://127.0.0.1:99999" for command in ("status", "doctor")),
    ],
    "no reply within": [f"ping controller {BUS} --timeout-s 0.05"],
    "give its other address too": [f"run {BUS} t.py", f"status {BUS}", f"doctor {BUS}", f"attach x {DATABASE}"],
    "is not the id of an incident": ["show x", "show ''", "explain x", "explain ../x"],
    "is not a version": ["rollback x --to 'a b'", "rollback x --to ١"],
    "choose": ["update x --from . --urgent --lazy", f"sql x --json --csv {DATABASE}"],
    "cannot be kept as a version": [f"update x --from dir {BUS}"],
    "there is no directory": ["ckpt ls --path nosuch", "ckpt ls --path t.py"],
    "not both": ["ckpt ls x --path dir"],
    "name a job": ["ckpt verify"],
    "checkpoints cannot be kept at": ["ckpt ls --path foo://x"],
    "there is no published checkpoint": ["ckpt verify --path dir"],
    "there is no step": [
        *("ckpt verify --path dir --step 5", f"ckpt export newest {EXPORT}", f"ckpt export 1 {EXPORT}"),
    ],
    "is not a step": [f"ckpt export {step} {EXPORT}" for step in ("x", "''", "١", "1.5", "newest1")],
    "is neither a directory of torch": [f"ckpt import {it} --path dir --step 1" for it in ("t.py", "binary", "dir")],
    "exists: name a new file": ["backup dir", "backup t.py"],
    "cannot be restored": [f"restore {file} --yes {DATABASE}" for file in ("t.py", "binary", "empty")],
    "no process writes to it": [
        *("config --config pipe", "up --config pipe", "inspect --config pipe", "run --env-file pipe t.py"),
        *(f"whatif {option} pipe {DATABASE}" for option in ("--policy", "--was")),
        *("classify pipe", "classify --exit-codes pipe t.py", "analyze pipe"),
    ],
    "is read more than once": [f"restore pipe --yes {DATABASE}"],
    "there is no policy": ["simulate --policy pipe"],
    "there is no fault": ["inject nosuch", "inject ''"],
    "give NAME=VALUE": ["inject kill-rank --rank 0 -o x", "inject kill-rank --rank 0 -o =1"],
    "no fault nosuch is active": ["inject --undo nosuch"],
    "there is no check": ["inspect --only nosuch"],
    "not the number of an Xid": ["xid nosuch", "xid dir", "xid 99999999999", "xid ٧٩", "xid 1e3"],
    "is not there": ["classify nosuch", "analyze nosuch"],
    "give RANK=CODE": [
        *(f"classify --exit-codes {codes} t.py" for codes in ("x", "0=nan", "٠=١", "junk.json", "0=300", "0=1_0", "=")),
    ],
    "no rule matches": ["classify empty", "classify binary"],
    "has no files": ["analyze dir"],
    "no stacks of py-spy": ["analyze t.py", "analyze binary"],
    "its JSON is broken": ["analyze junk.json"],
}


def invocations() -> list[tuple[list[str], str]]:
    """Return the arguments of every wrong invocation, and the cause that its message names."""
    written = [(shlex.split(text), cause) for cause, texts in WRONG.items() for text in texts]
    return written + [([command, "--no-such-option"], "No such option") for command in every_command()]


def every_command() -> list[str]:
    return [command for commands in COMMANDS.values() for command in commands]


def make_files(folder: Path) -> None:
    """Write the files that the invocations name."""
    for name, content in {
        "t.py": b"pass\n",
        "latin.toml": b"# caf\xe9\n[pool]\nsize = 1\n",
        "broken.toml": b"[pool\n",
        "unknown.toml": b"[pool]\nsiez = 1\n",
        "deep.toml": b"x = " + b"[" * 10_000,
        "digits.toml": b"[pool]\nsize = " + b"9" * 5_000,
        "zero": b"A=\0",
        "nan.toml": b"[timeouts]\nnode_lost_s = nan\n",
        "type.toml": b"pool = 3\n",
        "binary": bytes(range(256)) * 10,
        "empty": b"",
        "junk.json": b'{"a":',
        "broken/cluster.json": b"\xff{}",
        "gone/cluster.json/x": b"",
        **{f"roles/{role}": b"secret" for role in ROLES},
        **{f"odd/{role}": b"\xff" for role in ROLES},
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (folder / "dir").mkdir()
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "pipe")


ROLES = ("controller", "analyzer", "standby", "ckpt", "historian", "reader")
