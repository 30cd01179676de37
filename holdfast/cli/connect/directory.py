"""The option that says which embedded cluster a command means."""

import contextlib
import os
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from holdfast.cli.output.tables import printable
from holdfast.embedded.errors import EmbeddedError
from holdfast.embedded.layout import DEFAULT_DIRECTORY, DIRECTORY_VARIABLE

F = TypeVar("F", bound=Callable[..., Any])


def found_directory() -> Path:
    """`.holdfast` here or in the nearest directory above that holds a cluster of ours, as git finds a repository."""
    here = Path.cwd()
    for above in (here, *here.parents):
        # Somebody else's, say in /tmp, could lead our jobs to a bus of theirs.
        with contextlib.suppress(OSError):
            if (above / DEFAULT_DIRECTORY / "cluster.json").stat().st_uid == os.geteuid():
                return above / DEFAULT_DIRECTORY
    return Path(DEFAULT_DIRECTORY)


def _of_the_group(context: click.Context, _: click.Parameter, value: Path) -> Path:
    """`holdfast nodes --dir D release N` means the cluster in D as well, whatever the environment says."""
    above = context.parent
    is_typed = context.get_parameter_source("directory") is ParameterSource.COMMANDLINE
    if above is not None and not is_typed and _names(above):
        return Path(above.params["directory"])
    return value


def _directory(default: Path | Callable[[], Path], shown: bool | str, text: str) -> Callable[[F], F]:
    return click.option(
        "--dir",
        "directory",
        type=click.Path(file_okay=False, path_type=Path),
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

new_directory_option = _directory(
    Path(DEFAULT_DIRECTORY), True, "Directory that holds the cluster's state, or is to hold it."
)


def is_named() -> bool:
    """Whether the command that runs, or its group, was told its directory, by --dir or in the environment."""
    context = click.get_current_context(silent=True)
    while context is not None and not _names(context):
        context = context.parent
    return context is not None


def _names(context: click.Context) -> bool:
    return context.get_parameter_source("directory") in (ParameterSource.COMMANDLINE, ParameterSource.ENVIRONMENT)


def as_typed(command: str, directory: Path) -> str:
    """The command as the user would have to type it from here for the cluster in `directory`."""
    default = Path(DEFAULT_DIRECTORY) if command == "up" else found_directory()
    if directory.resolve() == default.resolve():
        return f"holdfast {command}"
    return f"holdfast {command} --dir {shlex.quote(str(directory.resolve()))}"


@contextlib.contextmanager
def cluster_errors() -> Iterator[None]:
    """Turn an error of the embedded cluster into a message and exit code 1, without a traceback."""
    try:
        yield
    except EmbeddedError as error:
        # It may quote the end of a log.
        raise click.ClickException(printable(str(error), keep="\n\t")) from error
