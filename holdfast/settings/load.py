"""All settings, read once per process: defaults, then a TOML file, then the environment, then flags.

    # holdfast.toml
    nats_url = "tls://nats:4222"
    [timeouts]
    node_lost_s = 10
    [ladder]
    attempts_max = 5
    [pool]
    size = 2
    [record]
    half_life_days = 10
    [warm_up]
    limit_s = 20
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

    [slow]
    test = false

    [hang]
    floor_s = 20
    [telemetry]
    every_s = 10
    [jobs]
    run_as = "own"
    [network]
    tls_ca = "/etc/holdfast/ca.pem"

In the environment the same keys are HOLDFAST_NATS_URL, HOLDFAST_TIMEOUTS_NODE_LOST_S and so on; a table is JSON there.
A value may be read from a file named by the same variable with `_FILE` added, as container secrets are.
"""

from __future__ import annotations

import difflib
import operator
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from holdfast.bounded_calls import read_text
from holdfast.settings import Section
from holdfast.settings.addresses import Address
from holdfast.settings.checkpoint import CheckpointPolicy
from holdfast.settings.code import CodePolicy
from holdfast.settings.decisions.ladder import LadderPolicy
from holdfast.settings.decisions.record import RecordPolicy
from holdfast.settings.decisions.warm_up import WarmUpPolicy
from holdfast.settings.findings.corruption import CorruptionPolicy
from holdfast.settings.findings.hang import HangPolicy
from holdfast.settings.findings.slow import SlowPolicy
from holdfast.settings.findings.telemetry import TelemetryPolicy
from holdfast.settings.inspections import CommandCheck, InspectionPolicy
from holdfast.settings.jobs import JobsPolicy
from holdfast.settings.mechanisms import MechanismPolicy
from holdfast.settings.network import NetworkPolicy
from holdfast.settings.pool import PoolPolicy
from holdfast.settings.retention import HistoryPolicy, RetentionPolicy
from holdfast.settings.signals import SignalsPolicy
from holdfast.settings.timeouts import Timeouts

PREFIX = "HOLDFAST_"
DEFAULT_FILE = "holdfast.toml"


class ConfigRefused(ValueError):
    """A setting is unknown, of the wrong type, or contradicts another; the message names it and where it came from."""


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings."""

    nats_url: str = ""
    database_url: str = ""
    timeouts: Timeouts = Timeouts()
    ladder: LadderPolicy = LadderPolicy()
    pool: PoolPolicy = PoolPolicy()
    record: RecordPolicy = RecordPolicy()
    warm_up: WarmUpPolicy = WarmUpPolicy()
    history: HistoryPolicy = HistoryPolicy()
    retention: RetentionPolicy = RetentionPolicy()
    checkpoint: CheckpointPolicy = CheckpointPolicy()
    corruption: CorruptionPolicy = CorruptionPolicy()
    mechanisms: MechanismPolicy = MechanismPolicy()
    inspections: InspectionPolicy = InspectionPolicy()
    code: CodePolicy = CodePolicy()
    signals: SignalsPolicy = SignalsPolicy()
    hang: HangPolicy = HangPolicy()
    telemetry: TelemetryPolicy = TelemetryPolicy()
    slow: SlowPolicy = SlowPolicy()
    jobs: JobsPolicy = JobsPolicy()
    network: NetworkPolicy = NetworkPolicy()


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One setting as users see it: key, value and origin."""

    key: str
    value: str
    origin: str


_TABLES: dict[str, type[msgspec.Struct]] = {"inspections.commands": CommandCheck}
"""Settings that are tables: a user chooses the names, each with settings below it."""

ADDRESSES = {
    "nats_url": "Address of the bus, with a user and its password.",
    "database_url": "Address of Postgres, with a role and its password.",
}
"""Settings without a section, and what they mean."""

SECTIONS: dict[str, type[Section]] = {
    field.name: field.type for field in msgspec.structs.fields(Settings) if field.name not in ADDRESSES
}
SECRETS = ("network.order_key",)
"""Settings whose value is never shown."""
_TOP_LEVEL = ", ".join((*ADDRESSES, *(f"[{section}]" for section in SECTIONS)))
_KEYS = (*ADDRESSES, *(f"{section}.{name}" for section, kind in SECTIONS.items() for name in kind.__struct_fields__))


def load(
    environ: Mapping[str, str], flags: Mapping[str, str | None] | None = None, file: str | Path | None = None
) -> tuple[Settings, list[Setting]]:
    """Return the settings and the origin of each. `flags` has top-level keys given on the command line.

    Raises:
        ConfigRefused: unreadable, unknown, of the wrong type, or contradictory.
    """
    values: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for key, value, origin in (*_from_file(environ, file), *_from_environment(environ), *_from_flags(flags or {})):
        values[key] = value
        origins[key] = origin
    tree: dict[str, Any] = {key: values[key] for key in ADDRESSES if key in values}
    for section in SECTIONS:
        tree[section] = {key.split(".", 1)[1]: value for key, value in values.items() if key.startswith(section + ".")}
    try:
        settings = msgspec.convert(tree, Settings, strict=False)
    except (msgspec.ValidationError, ValueError) as error:
        raise ConfigRefused(_in_words(error, values, origins)) from error
    return settings, _listed(settings, origins)


def live(key: str, settings: Settings, listed: Iterable[Setting], environ: Mapping[str, str]) -> Address:
    """Return a setting; one that a file named by the environment holds is read again each time, so that a new password
    or key needs no restart. While the file cannot be read, its last content counts.
    """
    known: str = operator.attrgetter(key)(settings)
    variable = variable_of(key) + "_FILE"
    if next(row.origin for row in listed if row.key == key) != variable:
        return known
    path = Path(environ[variable])

    def read() -> str:
        nonlocal known
        try:
            known = read_text(path).strip() or known
        except (OSError, UnicodeDecodeError):
            return known
        return known

    return read


def timeouts_of(listed: Iterable[Setting]) -> Timeouts:
    """Return the timeouts among listed settings."""
    values = {row.key.removeprefix("timeouts."): row.value for row in listed if row.key.startswith("timeouts.")}
    try:
        return msgspec.convert(values, Timeouts, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigRefused(_in_words(error, {}, {})) from error


def _refuse_foreign(path: Path) -> None:
    """Refuse a file that another user has put where we happen to be: it can name programs, and who gets our jobs."""
    owner = path.stat().st_uid
    if owner not in {os.geteuid(), 0}:
        raise ConfigRefused(
            f"{path.resolve()} belongs to another user (uid {owner}): if you trust it, name it with "
            f"{PREFIX}CONFIG={DEFAULT_FILE}, or make it yours"
        )


def _from_file(environ: Mapping[str, str], file: str | Path | None) -> list[tuple[str, Any, str]]:
    named = file or environ.get(PREFIX + "CONFIG")
    path = Path(named or DEFAULT_FILE)
    if not named and not path.is_file():
        return []
    if not named:
        _refuse_foreign(path)
    try:
        data = tomllib.loads(read_text(path))
    except UnicodeDecodeError as error:
        raise ConfigRefused(f"the configuration file {path} is not UTF-8: {error}. Save it as UTF-8") from error
    except (OSError, ValueError, RecursionError) as error:
        # Not TOML, nested too deeply, or a number of thousands of digits.
        raise ConfigRefused(f"cannot read the configuration file {path}: {error}") from error
    found: list[tuple[str, Any, str]] = []
    for key, value in data.items():
        if key in ADDRESSES:
            found.append((key, value, str(path)))
        elif key in SECTIONS and isinstance(value, dict):
            found.extend((f"{key}.{name}", inner, str(path)) for name, inner in value.items())
        else:
            raise ConfigRefused(f"{path}: {no_such_setting(key)}")
    return found


def _from_environment(environ: Mapping[str, str]) -> list[tuple[str, Any, str]]:
    found: list[tuple[str, Any, str]] = []
    _refuse_misspelt(environ)
    for key in _KEYS:
        variable = variable_of(key)
        if variable + "_FILE" in environ:
            path = Path(environ[variable + "_FILE"])
            try:
                found.append((key, _of_text(key, read_text(path).strip(), f"{variable}_FILE"), f"{variable}_FILE"))
            except OSError as error:
                raise ConfigRefused(f"{variable}_FILE: cannot read {path}: {error.strerror or error}") from error
            except UnicodeDecodeError as error:
                raise ConfigRefused(f"{variable}_FILE: {path} is not UTF-8: {error}") from error
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
    for section in SECTIONS:
        prefix = variable_of(section) + "_"
        for name in environ:
            if name.startswith(prefix) and name not in known:
                raise ConfigRefused(f"{name}: {no_such_setting(f'{section}.{name.removeprefix(prefix).lower()}')}")


def variable_of(key: str) -> str:
    """Return the environment variable of a setting."""
    return PREFIX + key.replace(".", "_").upper()


def _from_flags(flags: Mapping[str, str | None]) -> list[tuple[str, Any, str]]:
    return [(key, value, "--" + key.replace("_", "-")) for key, value in flags.items() if value]


def _in_words(error: Exception, values: Mapping[str, Any], origins: Mapping[str, str]) -> str:
    """Describe an error by the names that users know, with the origin of the value."""
    what, _, path = str(error).partition(" - at `$")
    key = path.strip(".`")
    table, inside, _ = key.partition("[...]")
    if inside and isinstance(entries := values.get(table), dict):
        return _in_words_of_entry(table, entries, origins[table])
    if unknown := re.fullmatch("Object contains unknown field `(.*)`", what):
        key = f"{key}.{unknown[1]}"
        return f"{origins.get(key, 'set')}: {no_such_setting(key)}"
    if key in values:
        shown = "***" if key in SECRETS else repr(values[key])
        return f"{key} = {shown} (by {origins[key]}): {what[:1].lower()}{what[1:].replace('`', '')}"
    by = ", ".join(f"{other} by {origin}" for other, origin in sorted(origins.items()) if other.startswith(key))
    return f"[{key}] {what} (set: {by})"


def _in_words_of_entry(table: str, entries: Mapping[str, Any], origin: str) -> str:
    for name, entry in entries.items():
        try:
            msgspec.convert(entry, _TABLES[table], strict=False)
        except (msgspec.ValidationError, ValueError) as error:
            return f"[{table}.{name}] (by {origin}): {str(error).replace('`', '').replace('$.', '')}"
    return f"[{table}] (by {origin}): its names are texts"


def no_such_setting(key: str) -> str:
    """Return in words that there is no such setting, and what there is."""
    near = difflib.get_close_matches(key, _KEYS, n=1)
    meant = f", perhaps {near[0]} is meant" if near else ""
    kind = SECTIONS.get(key.split(".")[0])
    # No hint to `holdfast config`: it refuses the same.
    there = f"[{key.split('.')[0]}] has {', '.join(kind.__struct_fields__)}" if kind else f"there are {_TOP_LEVEL}"
    return f"unknown setting {key}{meant}: {there}"


def _listed(settings: Settings, origins: Mapping[str, str]) -> list[Setting]:
    rows = [(key, str(getattr(settings, key))) for key in ADDRESSES]
    for key in _KEYS[len(ADDRESSES) :]:
        section, name = key.split(".")
        value = getattr(getattr(settings, section), name)
        rows.append((key, "***" if value and key in SECRETS else _shown(value)))
    return [Setting(key=key, value=value, origin=origins.get(key, "default")) for key, value in rows]


def _shown(value: str | float | dict[str, msgspec.Struct]) -> str:
    if isinstance(value, dict):
        return msgspec.json.encode(value).decode() if value else ""
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value)
