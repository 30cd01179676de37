"""Only Holdfast's roles connect to its database; every other role of the server could.

Revision ID: 0026
Revises: 0025
"""

from __future__ import annotations

from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

ROLES = ("controller", "analyzer", "standby", "ckpt", "historian", "reader")


def upgrade() -> None:
    roles = ", ".join(f"holdfast_{role}" for role in ROLES)
    op.execute(
        f"""
        do $$ begin
            execute format('revoke connect on database %I from public', current_database());
            execute format('grant connect on database %I to {roles}', current_database());
        end $$
        """
    )
