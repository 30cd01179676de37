"""The configuration of all children of an embedded cluster, found and checked once by `up`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.embedded.errors import EmbeddedError
from holdfast.node.users.user_rights import JobUserRefused, find_run_as
from holdfast.settings import load
from holdfast.settings.load import Setting
from holdfast.settings.timeouts import Timeouts

CONFIG_VARIABLE = "HOLDFAST_CONFIG"
RUN_AS_VARIABLE = "HOLDFAST_JOBS_RUN_AS"
"""Variable that `holdfast up --run-as` sets before it reads the settings."""
FILE_SUFFIX = "_FILE"
"""After the name of a variable whose value lies in a file."""


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """The configuration that `holdfast config` shows where `up` was started."""

    file: Path | None = None
    """Absolute path, None without a file."""
    timeouts: Timeouts = field(default_factory=Timeouts)
    passage_gid: int | None = None
    """The group by which ranks pass to their node's directory; None: they run as the cluster's user."""
    settings: tuple[Setting, ...] = field(default=(), compare=False)
    """All settings with where they came from, for display only. Without the addresses, which belong to the cluster and
    hold passwords.
    """

    def environment(self) -> dict[str, str]:
        """Return the variables that make a child read this file, and no file in its working directory."""
        return {CONFIG_VARIABLE: os.devnull if self.file is None else str(self.file)}


def find_configuration(environ: Mapping[str, str], named: str | Path | None = None) -> Configuration:
    """Read and check the file `named`, else HOLDFAST_CONFIG's, else `holdfast.toml` in this directory if it exists.
    Raises EmbeddedError with the reason if a service would refuse it.
    """
    try:
        settings, listed = load.load(environ, file=named)
        passage_gid = find_run_as(settings.jobs.run_as).passage_gid
    except (load.ConfigRefused, JobUserRefused) as error:
        raise EmbeddedError(str(error)) from error
    given = named or environ.get(CONFIG_VARIABLE)
    file = Path(given or load.DEFAULT_FILE)
    return Configuration(
        file=file.absolute() if given or file.is_file() else None,
        timeouts=settings.timeouts,
        passage_gid=passage_gid,
        settings=tuple(row for row in listed if row.key not in load.ADDRESSES),
    )
