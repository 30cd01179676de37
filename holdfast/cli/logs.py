"""`holdfast logs`: what the processes of the embedded cluster wrote."""

import os
import time
from pathlib import Path
from typing import BinaryIO

import click

from holdfast.cli.directory import directory_option, explained
from holdfast.cli.tables import printable
from holdfast.embedded.errors import EmbeddedError
from holdfast.embedded.layout import Layout
from holdfast.embedded.logfile import tail

_LOOK_EVERY_S = 0.2


@click.command()
@click.argument("service", required=False)
@directory_option
@click.option("--follow", "-f", is_flag=True, help="Go on printing as more is written; Ctrl-C ends it.")
@click.option("--lines", "-n", type=click.IntRange(min=0), default=50, show_default=True, help="Lines to begin with.")
def logs(service: str | None, directory: Path, follow: bool, lines: int) -> None:
    """Print the log of one process, or the ends of all of them.

    SERVICE is a name that `holdfast status` shows (postgres, nats, controller, node-0, ...) or supervisor.
    """
    with explained():
        layout = Layout(directory)
        layout.info()
        files = _files(layout, service)
        prefixes = _prefixes(list(files), alone=service is not None)
        followers = {}
        for name, file in files.items():
            size = file.stat().st_size
            for line in tail(file, lines, size):
                click.echo(prefixes[name] + printable(line, keep="\t"))
            if follow:
                followers[name] = Follower(file, size)
    try:
        while followers:
            for name, follower in followers.items():
                for line in follower.read():
                    click.echo(prefixes[name] + printable(line, keep="\t"))
            time.sleep(_LOOK_EVERY_S)
    except KeyboardInterrupt:
        return


class Follower:
    """New whole lines of a file, from a position on, across its rotation."""

    def __init__(self, file: Path, position: int) -> None:
        self._path = file
        self._file: BinaryIO = open(file, "rb")  # noqa: SIM115 - open for as long as the command runs
        self._file.seek(position)
        self._begun = b""

    def read(self) -> list[str]:
        data = self._begun + self._file.read()
        if self._rotated():
            # What came between the read and the rotation is still in the old file.
            data += self._file.read()
            self._file.close()
            self._file = open(self._path, "rb")  # noqa: SIM115
            data += self._file.read()
        *whole, self._begun = data.split(b"\n")
        return [line.decode(errors="replace") for line in whole]

    def _rotated(self) -> bool:
        try:
            return os.stat(self._path).st_ino != os.fstat(self._file.fileno()).st_ino
        except FileNotFoundError:
            # Between the two steps of a rotation.
            return False


def _files(layout: Layout, service: str | None) -> dict[str, Path]:
    known = {file.stem: file for file in sorted(layout.logs.glob("*.log"))}
    if service is None:
        return known
    if service not in known:
        raise EmbeddedError(f"there is no log of {service!r} in {layout.logs}; there are {', '.join(known)}.")
    return {service: known[service]}


def _prefixes(names: list[str], *, alone: bool) -> dict[str, str]:
    width = max(map(len, names), default=0)
    return {name: "" if alone else f"{name.ljust(width)} | " for name in names}
