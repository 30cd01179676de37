"""`holdfast simulate`: what it needs no simulation for."""

import json

from click.testing import CliRunner

from holdfast.cli.commands.diagnosis.simulate import simulate
from holdfast_proving.scenario.load import load_scenario, shipped


def test_scenarios_are_listed_with_what_they_are() -> None:
    listed = json.loads(CliRunner().invoke(simulate, ["--list", "--json"]).output)
    assert listed == {name: load_scenario(name).title for name in shipped()}
    shown = CliRunner().invoke(simulate, ["--list"]).output
    assert all(f"{name} " in shown and load_scenario(name).title in shown for name in shipped())
