"""`holdfast versions`: versions of a job's code, their differences, and their files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from holdfast.cli.connect.addresses import reader_url
from holdfast.cli.connect.connect_options import reading_options
from holdfast.cli.connect.database import Connection, as_dicts, read
from holdfast.cli.names import require_name
from holdfast.cli.output.tables import Column, json_text, printable, render, table
from holdfast.cli.output.unknown_job import unknown_job
from holdfast.cli.values import FilePath
from holdfast.code.difference import content_of, difference, lines, unified_diff
from holdfast.code.manifest import InvalidManifest, Manifest, decode, digest_of, short
from holdfast.code.unpack import WrongContent, unpack

_VERSIONS = """
select v.number, v.code as version, v.verdict, v.body->'about'->>'why' as why,
       case v.code when j.code_version then 'runs' when j.code_waits then 'waits' end as state,
       v.body->'about'->>'commit' as commit, coalesce((v.body->'about'->>'is_dirty')::boolean, false) as is_dirty,
       (v.body->'about'->>'files')::bigint as files, (v.body->'about'->>'code_bytes')::bigint as bytes,
       v.body->'about'->>'author' as author, v.created_at, v.body->'about'->>'message' as message,
       v.body->'about'->>'parent' as parent, v.body->'about'->>'origin' as origin
from controller.code_versions v left join controller.jobs j on j.key = v.job
where v.job = $1 order by v.number
"""
_PHASE = "select phase from controller.jobs where key = $1"
_CONTENTS = "select sha256, content from controller.code_contents where sha256 = any($1::text[])"


@click.group(invoke_without_command=True)
@click.argument("job")
@reading_options
@click.pass_context
def versions(context: click.Context, job: str, directory: Path, database_url: str | None, as_json: bool) -> None:
    """List the versions of JOB's code: the running one, a waiting one, and the verdict about each.

    A verdict is unknown until the version has trained on every node, good once it has trained for long enough
    (settings `[code]`), and bad after a rollback.

    \b
        holdfast versions llama-7
        holdfast versions llama-7 diff 2 3
        holdfast versions llama-7 export 2 /tmp/llama-as-it-was
    """
    require_name(job, "job name")
    if context.invoked_subcommand is not None:
        return
    rows = read(reader_url(directory, database_url), lambda connection: _rows(connection, job))
    columns: dict[str, Column] = {
        "NUMBER": "number",
        "VERSION": lambda row: short(row["version"]),
        "STATE": "state",
        "VERDICT": "verdict",
        "COMMIT": _commit,
        "FILES": "files",
        "BYTES": "bytes",
        "CREATED": "created_at",
        "BY": "author",
        "MESSAGE": "message",
        "WHY": "why",
    }
    click.echo(json_text(rows, indent=2) if as_json else table(columns, rows))


@versions.command()
@click.argument("old")
@click.argument("new")
@click.option("--patch", "-p", is_flag=True, help="Show the lines, like diff -u.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def diff(context: click.Context, old: str, new: str, patch: bool, as_json: bool) -> None:
    """Show the files that differ between the versions OLD and NEW, with the number of lines."""

    async def fetch(connection: Connection) -> tuple[list[Manifest], dict[str, bytes]]:
        rows = await _rows(connection, _job(context))
        manifests = [await _manifest(connection, _chosen(rows, name)) for name in (old, new)]
        differing = set(difference(*manifests).paths)
        digests = {content_of(entry) for manifest in manifests for entry in manifest.entries if entry.path in differing}
        return manifests, await _contents(connection, [digest for digest in digests if digest])

    manifests, contents = read(_url(context), fetch)
    changes = difference(*manifests)
    before, after = ({entry.path: entry for entry in manifest.entries} for manifest in manifests)

    def sides(path: str) -> tuple[bytes, bytes]:
        old_digest, new_digest = content_of(before.get(path)), content_of(after.get(path))
        return contents.get(old_digest or "", b""), contents.get(new_digest or "", b"")

    kinds = [("changed", changes.changed), ("added", changes.added), ("removed", changes.removed)]
    counted = [(kind, lines(path, *sides(path))) for kind, paths in kinds for path in paths]
    if as_json:
        listed = [{"path": of.path, "kind": kind, "added": of.added, "removed": of.removed} for kind, of in counted]
        click.echo(json_text({"count": changes.count, "files": listed}, indent=2))
    elif patch:
        for _, of in counted:
            for line in unified_diff(of.path, *sides(of.path)):
                click.echo(printable(line, keep="\t"))
    else:
        rows = [(kind, of.path, of.added, of.removed) for kind, of in counted]
        click.echo(render(["WHAT", "FILE", "LINES ADDED", "REMOVED"], rows) if rows else "no file differs")
        if changes.count > len(counted):
            click.echo(f"and {changes.count - len(counted)} more")


@versions.command()
@click.argument("version")
@click.argument("target", type=FilePath(path_type=Path))
@click.pass_context
def export(context: click.Context, version: str, target: Path) -> None:
    """Write all files of VERSION into the new directory TARGET, and check each against its hash."""

    async def fetch(connection: Connection) -> tuple[Manifest, dict[str, bytes]]:
        manifest = await _manifest(connection, _chosen(await _rows(connection, _job(context)), version))
        return manifest, await _contents(connection, list(manifest.digests))

    manifest, contents = read(_url(context), fetch)
    if target.exists():
        raise click.ClickException(f"{target} exists already: name a new directory")
    try:
        unpack(manifest, lambda digest: contents.get(digest, b""), target, read_only=False)
    except WrongContent as error:
        raise click.ClickException(f"the database has lost a part of this version: {error}") from error
    except OSError as error:
        raise click.ClickException(f"{target} cannot be written: {error.strerror}") from error
    click.echo(f"{len(manifest.entries)} files in {target}")


def _job(context: click.Context) -> str:
    assert context.parent is not None
    return str(context.parent.params["job"])


def _url(context: click.Context) -> str:
    assert context.parent is not None
    return reader_url(context.parent.params["directory"], context.parent.params["database_url"])


async def _rows(connection: Connection, job: str) -> list[dict[str, Any]]:
    rows = as_dicts(await connection.fetch(_VERSIONS, job))
    if rows:
        return rows
    if await connection.fetchval(_PHASE, job) is None:
        raise await unknown_job(connection, job)
    raise click.ClickException(f"job {job} runs its script where it lies: no version of its code is kept")


def _chosen(rows: list[dict[str, Any]], name: str) -> str:
    found = [row for row in rows if str(row["number"]) == name] or [
        row for row in rows if name and row["version"].startswith(name)
    ]
    if len(found) != 1:
        what = "is no version" if not found else "could be several versions"
        raise click.ClickException(f"{name} {what}: give a number or more of the name, as `holdfast versions` lists it")
    return str(found[0]["version"])


async def _manifest(connection: Connection, version: str) -> Manifest:
    body = (await _contents(connection, [version])).get(version, b"")
    try:
        if digest_of(body) != version:
            raise InvalidManifest("its job was deleted, or the database has lost a part")
        return decode(body)
    except InvalidManifest as error:
        raise click.ClickException(f"version {short(version)} cannot be read: {error}") from error


async def _contents(connection: Connection, digests: list[str]) -> dict[str, bytes]:
    return {row["sha256"]: bytes(row["content"]) for row in await connection.fetch(_CONTENTS, digests)}


def _commit(row: dict[str, Any]) -> str | None:
    return short(row["commit"]) + ("+" if row["is_dirty"] else "") if row["commit"] else None
