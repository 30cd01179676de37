"""The option --dir, which names an embedded cluster."""

import contextlib
import os
import shlex
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from holdfast.cli.output.tables import printable
from holdfast.cli.values import FilePath
from holdfast.embedded.errors import EmbeddedError
from holdfast.embedded.layout import DEFAULT_DIRECTORY, DIRECTORY_VARIABLE

F = TypeVar("F", bound=Callable[..., Any])


def found_directory() -> Path:
    """Return `.holdfast` here or in the nearest directory above that holds a cluster of this user."""
    here = Path.cwd()
    for above in (here, *here.parents):
        # A cluster of another user, in /tmp for example, could direct our jobs to their bus.
        with contextlib.suppress(OSError):
            place = above / DEFAULT_DIRECTORY
            # Resolved before it is looked at: a link of another user could lead elsewhere afterwards.
            place = place.resolve() if place.is_symlink() else place
            file = (place / "cluster.json").lstat()
            if stat.S_ISREG(file.st_mode) and file.st_uid == place.lstat().st_uid == os.geteuid():
                return place
    return Path(DEFAULT_DIRECTORY)


def _of_the_group(context: click.Context, _: click.Parameter, value: Path) -> Path:
    """Take --dir of the group, so that `holdfast nodes --dir D release N` means the cluster in D."""
    above = context.parent
    is_typed = context.get_parameter_source("directory") is ParameterSource.COMMANDLINE
    if above is not None and not is_typed and _names(above):
        return Path(above.params["directory"])
    return value


def _directory(default: Path | Callable[[], Path], shown: bool | str, text: str) -> Callable[[F], F]:
    return click.option(
        "--dir",
        "directory",
        type=FilePath(file_okay=False, path_type=Path),
        envvar=DIRECTORY_VARIABLE,
        default=default,
        show_default=shown,
        show_envvar=True,
        callback=_of_the_group,
        help=text,
    )


directory_option = _directory(
    found_directory, f"{DEFAULT_DIRECTORY} here or above", "Directory that holds the cluster's state."
)

new_directory_option = _directory(Path(DEFAULT_DIRECTORY), True, "Directory for the cluster's state.")


def is_named() -> bool:
    """Return True if --dir or the environment names the directory of the running command or its group."""
    context = click.get_current_context(silent=True)
    while context is not None and not _names(context):
        context = context.parent
    return context is not None


def _names(context: click.Context) -> bool:
    return context.get_parameter_source("directory") in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)


def as_typed(command: str, directory: Path) -> str:
    """Return the command as the user must type it here for the cluster in `directory`."""
    default = Path(DEFAULT_DIRECTORY) if command == "up" else found_directory()
    place = os.path.realpath(directory)
    if place == os.path.realpath(default):
        return f"holdfast {command}"
    return f"holdfast {command} --dir {shlex.quote(place)}"


@contextlib.contextmanager
def cluster_errors() -> Iterator[None]:
    """Turn an error of the embedded cluster into a message and exit code 1, without a traceback."""
    try:
        yield
    except EmbeddedError as error:
        # The message may quote the end of a log.
        raise click.ClickException(printable(str(error), keep="\n\t")) from error
