"""Queries are not compiled: a view over the history takes milliseconds, and compiling it a second or two.

Postgres compiles what it estimates to be expensive, by default and where it was built with LLVM. Each role may turn it
on again for itself: `set jit = on`.

Revision ID: 0029
Revises: 0028
"""

from __future__ import annotations

from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None

ROLES = ("controller", "analyzer", "standby", "ckpt", "historian", "reader")


def upgrade() -> None:
    for role in ROLES:
        op.execute(f"alter role holdfast_{role} set jit = off")
