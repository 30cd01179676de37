"""`holdfast inspect`."""

from __future__ import annotations

import subprocess
import sys

import click
import msgspec

from holdfast.cli.connect.connect_options import json_option
from holdfast.cli.output.tables import json_text, render
from holdfast.cli.values import FilePath
from holdfast.node.inspection_report import InspectedDevice, exit_code

_SHOWN = {"unreadable": "unreadable", "absent": "absent"}


@click.command()
@click.option("--only", multiple=True, metavar="CHECK", help="Only this check; repeatable.")
@click.option("--config", type=FilePath(dir_okay=False), help="TOML file with settings; default holdfast.toml.")
@json_option
def inspect(only: tuple[str, ...], config: str | None, as_json: bool) -> None:
    """Inspect this machine once, as its agent does: network, GPUs, kernel log, disks, mounts and more.

    \b
        holdfast inspect
        holdfast inspect --only disks --json

    No cluster is needed. A device that cannot be inspected is listed with the cause and the cure, and counts as neither
    healthy nor faulty. The kernel log is read since boot, so a fault that was repaired since may still be listed.

    \b
    State      meaning to an agent
    evict      certain fault of this machine: its node is evicted
    tolerate   often passes by itself; counts with a crash or hang of its node
    hint       no proof; used as evidence

    Exit codes, as for Nagios: 0 healthy, 1 hint or tolerate, 2 evict, 3 no fault, but something could not be inspected.
    Set thresholds and custom checks in [inspections] of holdfast.toml.
    """
    found = _inspected(only, config)
    if as_json:
        click.echo(json_text(found))
    else:
        rows = [[it.check, it.device, _SHOWN.get(it.state, it.state), it.detail] for it in found]
        click.echo(render(["check", "device", "state", "detail"], rows))
        for line in dict.fromkeys(line for it in found for line in it.lines):
            click.echo(f"  {render([''], [[line]]).strip()}")
    sys.exit(exit_code(found))


def _inspected(only: tuple[str, ...], config: str | None) -> tuple[InspectedDevice, ...]:
    # The code is the agent's, which is not imported here: it runs as a separate process.
    command = [sys.executable, "-P", "-m", "holdfast_agent.inspections", *(f"--only={name}" for name in only)]
    command += [f"--config={config}"] if config else []
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode != 0:
        raise click.ClickException(done.stderr.decode(errors="replace").strip() or "the checks did not run")
    return msgspec.json.decode(done.stdout, type=tuple[InspectedDevice, ...])
