"""Code versions that a job may need next. The controller writes it, agents fetch them ahead."""

from __future__ import annotations

from holdfast.code.manifest import Digest
from holdfast.events.parts.scalars import Id, Name
from holdfast.orders.base import Order


class CodeOrder(Order, frozen=True, kw_only=True, omit_defaults=True):
    """Code versions to fetch ahead of use, on the job's nodes and on standby nodes.

    Only a hint: an agent that misses it fetches the version that its node order names.
    """

    kind = "code"
    writer = "controller"
    addressee = "job"

    job: Name
    versions: tuple[Digest, ...] = ()
    """The most likely first."""
    root: str = ""
    """Directory of the source tree, as in `JobSpec`."""
    outside: tuple[str, ...] = ()
    """Paths that are not part of the code, as in `JobSpec`."""
    cause: Id | None = None

    @property
    def message_id(self) -> str:
        """Id by which the bus drops a second copy: key and cause."""
        return f"{self.key}-{self.cause or ''}"
