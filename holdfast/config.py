"""What can be set, read once per process: defaults, then a TOML file, then the environment, then flags.

    # holdfast.toml
    nats_url = "nats://nats:4222"
    [timeouts]
    node_lost_s = 10
    [ladder]
    attempts_max = 5
    [pool]
    size = 2
    [retention]
    ended_jobs_days = 90
    [checkpoint]
    backup_strategy = "ring"
    [corruption]
    certified_after_steps = 20

In the environment the same keys are HOLDFAST_NATS_URL, HOLDFAST_TIMEOUTS_NODE_LOST_S and so on. A value may be
read from a file named by the same variable with `_FILE` added, as container secrets are.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from holdfast.persistence import PersistEvery
from holdfast.subjects import DESIRED_KEPT_S
from holdfast.timeouts import Timeouts

PREFIX = "HOLDFAST_"
DEFAULT_FILE = "holdfast.toml"


class ConfigRefused(ValueError):
    """A setting is unknown, of the wrong type, or contradicts another; the message names it and where it came from."""


SETTLED_S_MAX = 7 * 86400.0


class LadderPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The recovery ladder's thresholds."""

    attempts_max: int = 8
    """Restarts within one incident before the job is stopped."""

    failures_of_node_max: int = 2
    """First-hand failures of a node within one incident that evict it."""

    same_failures_max: int = 4
    """Generations of one incident that may fail in the same way at the same step, and not all on one node, before the
    job is stopped: what comes again on another machine is no machine's fault."""

    settled_s: float = 600.0
    """A script that does not count its steps trains for this long until its incident counts as over."""

    def __post_init__(self) -> None:
        if self.attempts_max < 1 or self.failures_of_node_max < 1 or self.same_failures_max < 2:
            raise ValueError("attempts_max and failures_of_node_max must be at least 1, same_failures_max at least 2")
        if not 0 < self.settled_s <= SETTLED_S_MAX:
            raise ValueError(f"settled_s must be above 0 and at most {SETTLED_S_MAX:g}")


class PoolPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the warm pool is kept."""

    size: int = 0
    """Standby nodes that new jobs leave in the pool for those that lose a node."""

    def __post_init__(self) -> None:
        if self.size < 0:
            raise ValueError("size must not be negative")


class HistoryPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long the recorded history is kept."""

    keep_days: int = 0
    """Days of events that are kept; 0 keeps all."""

    def __post_init__(self) -> None:
        if self.keep_days < 0:
            raise ValueError("keep_days must not be negative")


_ORDERS_KEPT_DAYS = DESIRED_KEPT_S // (24 * 3600)


class RetentionPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long what is over is kept where work is done; the historian has the story (`HistoryPolicy`)."""

    ended_jobs_days: float = 30.0
    """Days that the controller keeps a job after its end.

    Its name stays taken afterwards: two jobs of one name would be one in the record, and share a directory.
    """

    lost_nodes_days: float = 7.0
    """Days that the inventory keeps a node that is lost or has departed, and is not on the blocklist."""

    jobs_on_node_max: int = 20
    """A node keeps logs and reports of this many jobs, those that began there last, besides the one that runs."""

    def __post_init__(self) -> None:
        if self.ended_jobs_days < 1:
            raise ValueError("ended_jobs_days must be at least 1: agents' last words of a job may arrive that late")
        if self.lost_nodes_days < _ORDERS_KEPT_DAYS + 1:
            raise ValueError(
                f"lost_nodes_days must be at least {_ORDERS_KEPT_DAYS + 1}: the last order of a node is on the bus for "
                f"{_ORDERS_KEPT_DAYS} days"
            )
        if self.jobs_on_node_max < 1:
            raise ValueError("jobs_on_node_max must be at least 1: the logs of the job that ended last are looked at")


BACKUP_EVERY_MAX = 1024
"""Backups further apart are no backups of steps any more: the disk has newer ones."""


class CheckpointPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How checkpoints stay in a node's memory, get copies on other nodes, and come to the disk."""

    backup_strategy: Literal["cross-group", "ring", "pairs"] = "cross-group"
    """Who keeps a node's copies: one outside of all its parallel groups, the next one, or two nodes each other's."""

    backup_every: int = 1
    """Every how many steps a copy is sent; less often for as long as the network does not keep up."""

    backup_bytes_per_s: float = 0.0
    """A node sends copies no faster; 0: as fast as they go, between the collectives of its ranks."""

    copy_threads: int = 1
    """Threads of a node's vault that copy the state of one rank, while it goes on, on cores that it does not need."""

    memory_steps: int = 2
    """Steps of each rank that a node keeps in memory, as long as there is room for more than a recovery may need."""

    memory_bytes: int = 0
    """Bytes of a node's memory for them all, those of other nodes included; 0: what the machine has."""

    persist_every: str = "10m"
    """How often a step goes to the disk, of jobs that do not say: "500" steps, "10m", "never"."""

    persist_bytes_per_s: float = 256e6
    """A node writes no faster; 0: as it can."""

    def __post_init__(self) -> None:
        if not 1 <= self.backup_every <= BACKUP_EVERY_MAX:
            raise ValueError(f"backup_every must be from 1 to {BACKUP_EVERY_MAX}")
        if self.memory_steps < 2:
            raise ValueError("memory_steps must be at least 2: ranks may be one step apart")
        if min(self.memory_bytes, self.persist_bytes_per_s, self.backup_bytes_per_s) < 0:
            raise ValueError("memory_bytes, persist_bytes_per_s and backup_bytes_per_s must not be negative")
        if self.copy_threads < 1:
            raise ValueError("copy_threads must be at least 1")
        PersistEvery.parse(self.persist_every)


class CorruptionPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What losses and gradient norms say of the training's health: when a step is clean, and when it is spoiled."""

    certified_after_steps: int = 10
    """Clean steps that must follow before what was before them counts as clean."""

    jump_factor: float = 5.0
    """How many times above its running level a number is a sign of corruption."""

    loss_jump_steps: int = 3
    """Steps that a loss must stay there to be a fault; one that is not finite is a fault at once."""

    grad_norm_steps: int = 10
    """Steps that a gradient norm must be that high or not finite to be a fault: loss scaling overflows now and then."""

    def __post_init__(self) -> None:
        if min(self.certified_after_steps, self.loss_jump_steps, self.grad_norm_steps) < 1:
            raise ValueError("certified_after_steps, loss_jump_steps and grad_norm_steps must be at least 1")
        if not self.jump_factor > 1:
            raise ValueError("jump_factor must be above 1: numbers move around their level")


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that can be set."""

    nats_url: str = ""
    database_url: str = ""
    timeouts: Timeouts = Timeouts()
    ladder: LadderPolicy = LadderPolicy()
    pool: PoolPolicy = PoolPolicy()
    history: HistoryPolicy = HistoryPolicy()
    retention: RetentionPolicy = RetentionPolicy()
    checkpoint: CheckpointPolicy = CheckpointPolicy()
    corruption: CorruptionPolicy = CorruptionPolicy()


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One setting, for people: its key, its value and where that came from."""

    key: str
    value: str
    origin: str


_SECTIONS: dict[str, type[msgspec.Struct]] = {
    "timeouts": Timeouts,
    "ladder": LadderPolicy,
    "pool": PoolPolicy,
    "history": HistoryPolicy,
    "retention": RetentionPolicy,
    "checkpoint": CheckpointPolicy,
    "corruption": CorruptionPolicy,
}
ADDRESSES = ("nats_url", "database_url")


def load(
    environ: Mapping[str, str], flags: Mapping[str, str | None] | None = None, file: str | Path | None = None
) -> tuple[Settings, list[Setting]]:
    """The settings, and where each came from. `flags` holds top-level keys given on the command line.

    Raises:
        ConfigRefused: unreadable, unknown, of the wrong type, or contradictory.
    """
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for key, value, origin in (*_from_file(environ, file), *_from_environment(environ), *_from_flags(flags or {})):
        values[key] = value
        origins[key] = origin
    tree: dict[str, Any] = {key: values[key] for key in ADDRESSES if key in values}
    for section in _SECTIONS:
        tree[section] = {key.split(".", 1)[1]: value for key, value in values.items() if key.startswith(section + ".")}
    try:
        settings = msgspec.convert(tree, Settings, strict=False)
    except (msgspec.ValidationError, ValueError) as error:
        raise ConfigRefused(f"{error} ({_where(origins)})") from error
    return settings, _listed(settings, origins)


def _from_file(environ: Mapping[str, str], file: str | Path | None) -> list[tuple[str, Any, str]]:
    named = file or environ.get(PREFIX + "CONFIG")
    path = Path(named or DEFAULT_FILE)
    if not named and not path.is_file():
        return []
    try:
        data = tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ConfigRefused(f"cannot read the configuration file {path}: {error}") from error
    found: list[tuple[str, Any, str]] = []
    for key, value in data.items():
        if key in ADDRESSES:
            found.append((key, value, str(path)))
        elif key in _SECTIONS and isinstance(value, dict):
            found.extend((f"{key}.{name}", inner, str(path)) for name, inner in value.items())
        else:
            raise ConfigRefused(f"{path}: unknown setting {key!r}; `holdfast config` lists those that exist")
    return found


def _from_environment(environ: Mapping[str, str]) -> list[tuple[str, Any, str]]:
    found: list[tuple[str, Any, str]] = []
    for key in (*ADDRESSES, *(f"{section}.{name}" for section, kind in _SECTIONS.items() for name in _fields(kind))):
        variable = variable_of(key)
        if variable + "_FILE" in environ:
            path = Path(environ[variable + "_FILE"])
            try:
                found.append((key, path.read_text().strip(), f"{variable}_FILE"))
            except OSError as error:
                raise ConfigRefused(f"{variable}_FILE: cannot read {path}: {error.strerror}") from error
        if variable in environ:
            found.append((key, environ[variable], variable))
    return found


def variable_of(key: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + key.replace(".", "_").upper()


def _from_flags(flags: Mapping[str, str | None]) -> list[tuple[str, Any, str]]:
    return [(key, value, "--" + key.replace("_", "-")) for key, value in flags.items() if value]


def _fields(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    return kind.__struct_fields__


def _where(origins: Mapping[str, str]) -> str:
    return (
        "set: " + ", ".join(f"{key} by {origin}" for key, origin in sorted(origins.items())) if origins else "defaults"
    )


def _listed(settings: Settings, origins: Mapping[str, str]) -> list[Setting]:
    rows = [(key, str(getattr(settings, key))) for key in ADDRESSES]
    for section, kind in _SECTIONS.items():
        rows += [(f"{section}.{name}", _shown(getattr(getattr(settings, section), name))) for name in _fields(kind)]
    return [Setting(key=key, value=value, origin=origins.get(key, "default")) for key, value in rows]


def _shown(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:g}"
