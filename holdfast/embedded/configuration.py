"""The configuration that every child of an embedded cluster runs with: found and checked once, where `up` is called."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.embedded.errors import EmbeddedError
from holdfast.settings import load
from holdfast.settings.load import Setting
from holdfast.settings.timeouts import Timeouts

CONFIG_VARIABLE = "HOLDFAST_CONFIG"
FILE_SUFFIX = "_FILE"


@dataclass(frozen=True, kw_only=True)
class Configuration:
    """What `holdfast config` shows in the same place: `file` is absolute, None where there is none."""

    file: Path | None = None
    timeouts: Timeouts = field(default_factory=Timeouts)
    settings: tuple[Setting, ...] = field(default=(), compare=False)
    """All of them, for people, but the addresses: a cluster has its own, with passwords."""

    def environment(self) -> dict[str, str]:
        """What makes a child read this file, and no other that its own directory may hold."""
        return {CONFIG_VARIABLE: os.devnull if self.file is None else str(self.file)}


def find_configuration(environ: Mapping[str, str], named: str | Path | None = None) -> Configuration:
    """The file `named`, else that of HOLDFAST_CONFIG, else `holdfast.toml` if there is one here, read and checked.

    Raises EmbeddedError where a service would refuse it, with the reason.
    """
    try:
        settings, listed = load.load(environ, file=named)
    except load.ConfigRefused as error:
        raise EmbeddedError(str(error)) from error
    given = named or environ.get(CONFIG_VARIABLE)
    file = Path(given or load.DEFAULT_FILE)
    return Configuration(
        file=file.absolute() if given or file.is_file() else None,
        timeouts=settings.timeouts,
        settings=tuple(row for row in listed if row.key not in load.ADDRESSES),
    )
