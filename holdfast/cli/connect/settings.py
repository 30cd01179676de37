"""The settings of a command: from the file and the environment where it is called, as services read theirs."""

from __future__ import annotations

import os

import click

from holdfast.settings import load


def own_settings() -> load.Settings:
    """Return the settings. Raises ClickException if they are refused."""
    try:
        return load.load(os.environ)[0]
    except load.ConfigRefused as error:
        raise click.ClickException(str(error)) from error
