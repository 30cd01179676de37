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
    [mechanisms]
    stop_time_checks = "observe"
    [inspections]
    gpu_s = 5
    [inspections.commands.fans]
    command = "/usr/local/bin/check_fans --quiet"
    [code]
    good_after_steps = 500
    [signals]
    read_training_logs = false

In the environment the same keys are HOLDFAST_NATS_URL, HOLDFAST_TIMEOUTS_NODE_LOST_S and so on; a table is JSON there.
A value may be read from a file named by the same variable with `_FILE` added, as container secrets are.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from holdfast.inspection_policy import CommandCheck, InspectionPolicy
from holdfast.persistence import PersistEvery
from holdfast.ranges import require_within
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

    alerts_max: int = 2
    """Alerts of one kind, within `alerts_window_s`, that evict a node where one may pass by itself, as of a link."""

    alerts_window_s: float = 300.0
    """Alerts that are further apart do not add up (ByteRobust: twice within five minutes)."""

    reattempts_before_checks: int = 1
    """Restarts in place, after crashes without a culprit, before the nodes are checked while training stands still.

    0: they are checked at the first crash. Bad numbers lead there at once: they come from machines that look well."""

    replay_steps_min: int = 20
    """Steps that a replay has at least: what comes at random steps needs some to come again."""

    replay_steps_max: int = 1000
    """Steps that a replay has at most, however far the step that failed is from the last one on the disk."""

    replay_layers: int = 0
    """Layers that a script is asked to replay with (`trainer.replay().layers`); 0: as many as in training."""

    replay_suspects_max: int = 2
    """Machines that a replay may evict where it cannot tell which of them it is; more are only named."""

    evictions_share_max: float = 0.2
    """Share of a job's nodes that may be evicted within `evictions_window_s`; beyond it the circuit breaker opens: what
    blames that many machines is more likely wrong than right."""

    evictions_min: int = 3
    """So many evictions are always allowed, or jobs of a few nodes could have none."""

    evictions_window_s: float = 3600.0

    def __post_init__(self) -> None:
        require_within(
            self,
            attempts_max=(1, 100_000),
            failures_of_node_max=(1, 100_000),
            same_failures_max=(2, 100_000),
            settled_s=(0.001, SETTLED_S_MAX),
            alerts_max=(1, 100),
            alerts_window_s=(1, 86400.0),
            reattempts_before_checks=(0, 100_000),
            replay_steps_min=(1, 1_000_000),
            replay_steps_max=(1, 1_000_000),
            replay_layers=(0, 100_000),
            replay_suspects_max=(1, 1_000_000),
            evictions_share_max=(0.0, 1.0),
            evictions_min=(0, 1_000_000),
            evictions_window_s=(1, 30 * 86400.0),
        )


Mode = Literal["act", "observe"]


class MechanismPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What may act by itself.

    A mechanism that observes says what it would have done (`withheld`); the ladder goes on as if it were not there.
    """

    inspections: Mode = "act"
    """Evictions for what a check of a node has found beside training."""

    bad_numbers: Mode = "act"
    """Going back to a certified step when losses or gradient norms show corruption."""

    stop_time_checks: Mode = "act"
    """Stopping the ranks to test the nodes, and evicting those that fail."""

    replay: Mode = "act"
    """Training again in small groups to find a machine that computes wrongly, and evicting it."""

    rollback: Mode = "act"
    """Going back to an earlier version of the code."""


DAYS_MAX = 36_500


class PoolPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the warm pool is kept."""

    size: int = 0
    """Standby nodes that new jobs leave in the pool for those that lose a node."""

    def __post_init__(self) -> None:
        require_within(self, size=(0, 1_000_000))


class HistoryPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long the recorded history is kept."""

    keep_days: int = 0
    """Days of events that are kept; 0 keeps all."""

    def __post_init__(self) -> None:
        require_within(self, keep_days=(0, DAYS_MAX))


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
        orders_kept = f"the last order of a node is on the bus for {_ORDERS_KEPT_DAYS} days"
        require_within(
            self,
            ended_jobs_days=(1, DAYS_MAX, "agents' last words of a job may arrive that late"),
            lost_nodes_days=(_ORDERS_KEPT_DAYS + 1, DAYS_MAX, orders_kept),
            jobs_on_node_max=(1, 1_000_000, "the logs of the job that ended last are looked at"),
        )


_BYTES_MAX = 1 << 53

REPLICAS_MAX = 64
BACKUP_EVERY_MAX = 1024
"""Backups further apart are no backups of steps any more: the disk has newer ones."""


class CheckpointPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How checkpoints stay in a node's memory, get copies on other nodes, and come to the disk."""

    backup_strategy: Literal["cross-group", "ring", "pairs"] = "cross-group"
    """Who keeps a node's copies: one outside of all its parallel groups, the next one, or two nodes each other's."""

    backup_every: int = 1
    """Every how many steps a copy is sent; less often for as long as the network does not keep up."""

    replicas_max: int = 8
    """So many data-parallel replicas share the sending of what they have in common; 1: each sends all of its own."""

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
        require_within(
            self,
            backup_every=(1, BACKUP_EVERY_MAX),
            replicas_max=(1, REPLICAS_MAX, "each asks all others at every step"),
            backup_bytes_per_s=(0, _BYTES_MAX),
            copy_threads=(1, 256),
            memory_steps=(2, 1024, "ranks may be one step apart"),
            memory_bytes=(0, _BYTES_MAX),
            persist_bytes_per_s=(0, _BYTES_MAX),
        )
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
        require_within(
            self,
            certified_after_steps=(1, 1_000_000),
            jump_factor=(1.01, 1e6, "numbers move around their level"),
            loss_jump_steps=(1, 1_000_000),
            grad_norm_steps=(1, 1_000_000),
        )


class CodePolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """When a version of a job's code counts as good: until then an error of the script rolls it back."""

    good_after_steps: int = 100
    """Steps that it trains in one generation, with no incident open."""

    good_after_s: float = 3600.0
    """Or seconds, whichever comes first."""

    def __post_init__(self) -> None:
        require_within(
            self, good_after_steps=(1, 1_000_000_000), good_after_s=(1, SETTLED_S_MAX, "what never comes is no verdict")
        )


class SignalsPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is looked at beside training: its logs, and its pace."""

    read_training_logs: bool = True
    """Whether agents read the TensorBoard and W&B files that ranks write."""

    peak_flops: float = 0.0
    """What the device of one rank does a second at most; 0: as the script says, or as its name tells."""

    decline_ratio: float = 0.8
    """A job that trains at this share of its usual pace, or below, has declined."""

    decline_steps: int = 50
    """Steps of which a pace is the median; it has to stay low for twice as many."""

    decline_warm_up_steps: int = 20
    """Steps of each start that say nothing of the pace."""

    def __post_init__(self) -> None:
        require_within(
            self,
            peak_flops=(0, 1e21),
            decline_ratio=(0.01, 0.99, "1 is the usual pace itself"),
            decline_steps=(5, 1_000_000),
            decline_warm_up_steps=(1, 1_000_000, "the first step of a start pays for connections"),
        )


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
    mechanisms: MechanismPolicy = MechanismPolicy()
    inspections: InspectionPolicy = InspectionPolicy()
    code: CodePolicy = CodePolicy()
    signals: SignalsPolicy = SignalsPolicy()


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
    "mechanisms": MechanismPolicy,
    "inspections": InspectionPolicy,
    "code": CodePolicy,
    "signals": SignalsPolicy,
}
_TABLES: dict[str, type[msgspec.Struct]] = {"inspections.commands": CommandCheck}
"""Settings that are tables themselves: each name that a user chose has settings of its own."""

ADDRESSES = ("nats_url", "database_url")
_TOP_LEVEL = ", ".join((*ADDRESSES, *(f"[{section}]" for section in _SECTIONS)))
_KEYS = (*ADDRESSES, *(f"{section}.{name}" for section, kind in _SECTIONS.items() for name in kind.__struct_fields__))


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
        raise ConfigRefused(_in_words(error, values, origins)) from error
    return settings, _listed(settings, origins)


def timeouts_of(listed: Iterable[Setting]) -> Timeouts:
    """The timeouts among settings that were listed."""
    values = {row.key.removeprefix("timeouts."): row.value for row in listed if row.key.startswith("timeouts.")}
    try:
        return msgspec.convert(values, Timeouts, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigRefused(_in_words(error, {}, {})) from error


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
            raise ConfigRefused(f"{path}: {_unknown(key)}")
    return found


def _from_environment(environ: Mapping[str, str]) -> list[tuple[str, Any, str]]:
    found: list[tuple[str, Any, str]] = []
    _refuse_misspelt(environ)
    for key in _KEYS:
        variable = variable_of(key)
        if variable + "_FILE" in environ:
            path = Path(environ[variable + "_FILE"])
            try:
                found.append((key, _of_text(key, path.read_text().strip(), f"{variable}_FILE"), f"{variable}_FILE"))
            except OSError as error:
                raise ConfigRefused(f"{variable}_FILE: cannot read {path}: {error.strerror}") from error
        if variable in environ:
            found.append((key, _of_text(key, environ[variable], variable), variable))
    return found


def _of_text(key: str, text: str, origin: str) -> Any:
    if key not in _TABLES:
        return text
    try:
        return msgspec.json.decode(text or "{}")
    except msgspec.DecodeError as error:
        raise ConfigRefused(f"{origin}: {key} is a table, in the environment as JSON: {error}") from error


def _refuse_misspelt(environ: Mapping[str, str]) -> None:
    known = {variable + suffix for variable in map(variable_of, _KEYS) for suffix in ("", "_FILE")}
    for section in _SECTIONS:
        prefix = variable_of(section) + "_"
        for name in environ:
            if name.startswith(prefix) and name not in known:
                raise ConfigRefused(f"{name}: {_unknown(f'{section}.{name.removeprefix(prefix).lower()}')}")


def variable_of(key: str) -> str:
    """The environment variable of a setting."""
    return PREFIX + key.replace(".", "_").upper()


def _from_flags(flags: Mapping[str, str | None]) -> list[tuple[str, Any, str]]:
    return [(key, value, "--" + key.replace("_", "-")) for key, value in flags.items() if value]


def _in_words(error: Exception, values: Mapping[str, Any], origins: Mapping[str, str]) -> str:
    """What is wrong, by the names that people know, and who set it."""
    what, _, path = str(error).partition(" - at `$")
    key = path.strip(".`")
    table, inside, _ = key.partition("[...]")
    if inside and isinstance(entries := values.get(table), dict):
        return _in_words_of_entry(table, entries, origins[table])
    if unknown := re.fullmatch("Object contains unknown field `(.*)`", what):
        key = f"{key}.{unknown[1]}"
        return f"{origins.get(key, 'set')}: {_unknown(key)}"
    if key in values:
        return f"{key} = {values[key]!r} (by {origins[key]}): {what[:1].lower()}{what[1:].replace('`', '')}"
    by = ", ".join(f"{other} by {origin}" for other, origin in sorted(origins.items()) if other.startswith(key))
    return f"[{key}] {what} (set: {by})"


def _in_words_of_entry(table: str, entries: Mapping[str, Any], origin: str) -> str:
    for name, entry in entries.items():
        try:
            msgspec.convert(entry, _TABLES[table], strict=False)
        except (msgspec.ValidationError, ValueError) as error:
            return f"[{table}.{name}] (by {origin}): {str(error).replace('`', '').replace('$.', '')}"
    return f"[{table}] (by {origin}): its names are texts"


def _unknown(key: str) -> str:
    near = difflib.get_close_matches(key, _KEYS, n=1)
    meant = f", perhaps {near[0]} is meant" if near else ""
    kind = _SECTIONS.get(key.split(".")[0])
    # Not a word of `holdfast config`: it refuses the same.
    there = f"[{key.split('.')[0]}] has {', '.join(kind.__struct_fields__)}" if kind else f"there are {_TOP_LEVEL}"
    return f"unknown setting {key}{meant}: {there}"


def _listed(settings: Settings, origins: Mapping[str, str]) -> list[Setting]:
    rows = [(key, str(getattr(settings, key))) for key in ADDRESSES]
    for key in _KEYS[len(ADDRESSES) :]:
        section, name = key.split(".")
        rows.append((key, _shown(getattr(getattr(settings, section), name))))
    return [Setting(key=key, value=value, origin=origins.get(key, "default")) for key, value in rows]


def _shown(value: str | float | dict[str, msgspec.Struct]) -> str:
    if isinstance(value, dict):
        return msgspec.json.encode(value).decode() if value else ""
    return f"{value:g}" if isinstance(value, float) else str(value)
