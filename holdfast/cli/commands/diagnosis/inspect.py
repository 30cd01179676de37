"""`holdfast inspect`."""

from __future__ import annotations

import subprocess
import sys

import click
import msgspec

from holdfast.cli.connect.options import json_option
from holdfast.cli.output.tables import json_text, render
from holdfast.node.inspection_report import InspectedDevice, exit_code

_SHOWN = {"unreadable": "cannot look", "absent": "not here"}


@click.command()
@click.option("--only", multiple=True, metavar="CHECK", help="Only this check; repeatable.")
@click.option("--config", type=click.Path(dir_okay=False), help="TOML file with settings; default holdfast.toml.")
@json_option
def inspect(only: tuple[str, ...], config: str | None, as_json: bool) -> None:
    """Look at this machine as its agent would, once: network, GPUs, kernel log, disks, mounts and more.

    No cluster is needed. What cannot be looked at is listed with why and the cure, and counts neither as well nor as
    wrong. Of the kernel's log everything since boot is read, so what is repaired since may still be listed.

    \b
    State      what an agent would say
    evict      this machine without doubt: its node is evicted
    tolerate   passes by itself often enough: a second time within five minutes evicts
    hint       proves nothing; diagnosis uses it

    Exit code as Nagios has it: 0 all well; 1 hint or tolerate; 2 evict; 3 nothing wrong, but something could not be
    looked at. Thresholds and checks of your own are set in [inspections] of holdfast.toml.
    """
    found = _looked(only, config)
    if as_json:
        click.echo(json_text(found))
    else:
        rows = [[it.check, it.device, _SHOWN.get(it.state, it.state), it.detail] for it in found]
        click.echo(render(["check", "device", "state", "detail"], rows))
        for line in dict.fromkeys(line for it in found for line in it.lines):
            click.echo(f"  {render([''], [[line]]).strip()}")
    sys.exit(exit_code(found))


def _looked(only: tuple[str, ...], config: str | None) -> tuple[InspectedDevice, ...]:
    # The agent's code: it runs as a process of its own, as it does everywhere.
    command = [sys.executable, "-P", "-m", "holdfast_agent.inspections", *(f"--only={name}" for name in only)]
    command += [f"--config={config}"] if config else []
    looked = subprocess.run(command, capture_output=True, check=False)
    if looked.returncode != 0:
        raise click.ClickException(looked.stderr.decode(errors="replace").strip() or "the checks did not run")
    return msgspec.json.decode(looked.stdout, type=tuple[InspectedDevice, ...])
