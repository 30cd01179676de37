"""The live view on a terminal: drawn on the alternate screen, ended by q or Ctrl-C, after which all is as before."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import termios
import tty
from collections.abc import Iterator

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from holdfast.cli.top.cluster_snapshot import Snapshot
from holdfast.cli.top.screen import WRONG, fitted, headline, lines, more_text
from holdfast.cli.top.top_reader import TopReader

HINT = "q: end · holdfast show N: an incident · holdfast doctor: causes and cures"


async def show_live(reader: TopReader) -> None:
    """Draw until q or Ctrl-C."""
    console = Console()
    loop, ended = asyncio.get_running_loop(), asyncio.Event()
    with _keys(loop, ended), Live(console=console, screen=True, auto_refresh=False) as live:
        live.update(Text("reading the cluster ..."), refresh=True)
        drawing = asyncio.create_task(
            reader.keep_reading(lambda snapshot: live.update(_drawn(snapshot, console), refresh=True))
        )
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, ended.set)
        waiting = asyncio.create_task(ended.wait())
        await asyncio.wait((drawing, waiting), return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        drawing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await drawing
    await reader.close()


@contextlib.contextmanager
def _keys(loop: asyncio.AbstractEventLoop, ended: asyncio.Event) -> Iterator[None]:
    """Have q end it, without Enter; the settings of the terminal are put back."""
    if not sys.stdin.isatty():
        yield
        return
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)

    def pressed() -> None:
        # Nothing at all: the terminal is gone.
        if (keys := os.read(keyboard, 64)) == b"" or b"q" in keys.lower():
            ended.set()

    tty.setcbreak(keyboard)
    loop.add_reader(keyboard, pressed)
    try:
        yield
    finally:
        loop.remove_reader(keyboard)
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def _drawn(snapshot: Snapshot, console: Console) -> RenderableType:
    height, width = console.size.height, console.size.width
    parts = [Text(headline(snapshot), style="bold")]
    for section in fitted(snapshot, height - 1):
        header, *rows = lines(section, width)
        parts += [Text(""), Text(header, style="bold")]
        parts += [
            Text(line, style="red" if WRONG in row[:1] else "") for line, row in zip(rows, section.rows, strict=True)
        ]
        if section.more:
            parts.append(Text(more_text(section), style="dim"))
    parts.append(Text(HINT, style="dim"))
    for part in parts:
        part.no_wrap, part.overflow = True, "ellipsis"
    return Group(*parts)
