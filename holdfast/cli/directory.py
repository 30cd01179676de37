"""The option that says which embedded cluster a command means."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import click

from holdfast.cli.tables import printable
from holdfast.embedded.errors import EmbeddedError
from holdfast.embedded.layout import DEFAULT_DIRECTORY, DIRECTORY_VARIABLE

directory_option = click.option(
    "--dir",
    "directory",
    type=click.Path(file_okay=False, path_type=Path),
    envvar=DIRECTORY_VARIABLE,
    default=Path(DEFAULT_DIRECTORY),
    show_default=True,
    show_envvar=True,
    help="Directory that holds the cluster's state.",
)


@contextlib.contextmanager
def explained() -> Iterator[None]:
    """Turn an error of the embedded cluster into a message and exit code 1, without a traceback."""
    try:
        yield
    except EmbeddedError as error:
        # It may quote the end of a log.
        raise click.ClickException(printable(str(error), keep="\n\t")) from error
