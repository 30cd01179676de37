"""Descriptions of the views: in the database itself, and in the historian's README."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.integration.historian_scene import database, query

pytestmark = pytest.mark.integration


urls = database("historian_views_described")


async def test_every_view_says_in_a_line_what_it_holds(urls: dict[str, str]) -> None:
    rows = await query(
        urls["reader"],
        "select c.relname, obj_description(c.oid, 'pg_class') as line from pg_class c "
        "where relnamespace = 'historian'::regnamespace and relkind = 'v'",
    )
    assert {row["relname"] for row in rows} == {
        *("steps", "generations", "incidents", "incident_timeline", "jobs", "events_by_type", "dead_letters"),
        *("logged_numbers", "throughput", "telemetry", "credential_changes", "shared_faults", "ettr"),
        *("group_evictions", "incident_phases", "device_activity", "port_activity"),
    }
    assert all(row["line"] for row in rows)


async def test_the_documented_queries_run(urls: dict[str, str]) -> None:
    readme = Path(__file__).parents[2] / "services" / "historian" / "README.md"
    (block,) = re.findall(r"```sql\n(.*?)```", readme.read_text(), re.DOTALL)
    queries = [part for part in block.split(";") if part.strip()]
    assert len(queries) == 8
    for text in queries:
        await query(urls["reader"], text)


async def test_the_documented_columns_exist(urls: dict[str, str]) -> None:
    readme = (Path(__file__).parents[2] / "services" / "historian" / "README.md").read_text()
    rows = await query(
        urls["reader"],
        "select table_name, column_name from information_schema.columns where table_schema = 'historian'"
        " and table_name !~ '^events_(default|2)'",
    )
    missing = [f"{row['table_name']}.{row['column_name']}" for row in rows if f"`{row['column_name']}`" not in readme]
    assert missing == []
