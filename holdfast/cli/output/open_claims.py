"""Open claims: jobs that wait for nodes, with the standby service's last report about each."""

from __future__ import annotations

import msgspec

from holdfast.cli.connect.database import Connection

_CLAIMS = """
select c.job, c.wanted, (w.body->>'available')::bigint as available, w.body->>'behind' as behind,
       (select count(*) from standby.nodes where blocked_until is not null) as blocked
from standby.claims c
left join lateral (
    select e.body from historian.events e
    where e.type = 'nodes_awaited' and e.job = c.job and e.body->>'claim' = c.body->>'id'
    order by e.at desc limit 1
) w on true
where c.granted_at is null
"""


class OpenClaim(msgspec.Struct, frozen=True, kw_only=True):
    """A claim that was not granted in full yet."""

    job: str
    wanted: int
    """Number of nodes that it waits for."""
    available: int | None = None
    """Number of free nodes, None until that is recorded."""
    behind: str | None = None
    """The job that must get its nodes first."""
    blocked: int = 0
    """Number of nodes on the blocklist."""

    def __str__(self) -> str:
        free = "" if self.available is None else f", {self.available} free"
        behind = f", behind job {self.behind}" if self.behind else ""
        blocked = f"; {self.blocked} on the blocklist (`holdfast nodes release --all`)" if self.blocked else ""
        return f"waits for {self.wanted} node{'' if self.wanted == 1 else 's'}{free}{behind}{blocked}"


async def open_claims(connection: Connection) -> dict[str, OpenClaim]:
    return {row["job"]: msgspec.convert(dict(row), OpenClaim) for row in await connection.fetch(_CLAIMS)}
