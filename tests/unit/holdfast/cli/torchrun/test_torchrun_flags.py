"""torchrun's own parser beside ours: no flag is missing, and command lines mean the same."""

from __future__ import annotations

import argparse
import re
import tempfile
from pathlib import Path
from typing import Any

import click
import pytest
from torch.distributed.run import get_args_parser

from holdfast.cli.commands.jobs.run import run
from holdfast.cli.torchrun.flags import FLAGS
from holdfast.cli.torchrun.meanings import launch_of, node_range, notices, ranks_per_node, started_elsewhere
from holdfast.cli.torchrun.options import flags_given
from holdfast.events.parts.launch import RESTARTS_UNBOUNDED, Launch, Streams, streams_of

PAGE = Path(__file__).parents[5] / "docs" / "torchrun.md"
POSITIONAL = {"training_script": "script", "training_script_args": "args"}

LINES = (
    # minGPT-ddp, in its README's shape.
    "--standalone --nproc_per_node=4 main.py",
    "--nproc_per_node=2 --nnodes=2 --node_rank=0 --rdzv_id=456 --rdzv_backend=c10d --rdzv_endpoint=host:29603 main.py",
    # pytorch/examples, ddp and its tutorials on Slurm.
    "--nnodes=1 --nproc_per_node=4 --rdzv_id=100 --rdzv_backend=c10d --rdzv_endpoint=localhost:29400 example.py",
    "--nnodes 4 --nproc_per_node 1 --rdzv_id 17 --rdzv_backend c10d --rdzv_endpoint 10.0.0.1:29500 multi.py 50 10",
    # torchtitan.
    "--nproc_per_node=8 --rdzv_backend c10d --rdzv_endpoint=localhost:0 --local-ranks-filter 0 --role rank --tee 3"
    " -m torchtitan.train --module llama3 --config llama3_debugmodel --training.steps=10",
    "--nnodes 4 --nproc_per_node 8 --rdzv_id 101 --rdzv_backend c10d --rdzv_endpoint head:29500"
    " ./torchtitan/train.py --job.config_file ./cfg.toml",
    # Megatron-LM.
    "--nproc_per_node 8 --nnodes 2 --node_rank 0 --master_addr 10.1.2.3 --master_port 6000 pretrain_gpt.py"
    " --tensor-model-parallel-size 2 --nnodes-of-mine 3 -m -- --max-restarts 9",
    # Everything else, in either spelling.
    "--nnodes 1:4 --max-restarts 3 --monitor-interval 0.5 --start-method forkserver --rdzv-conf timeout=60,a=b t.py",
    "--nnodes=2:2 --max_restarts=0 --monitor_interval=5 --start_method fork --log_dir /logs -r 3 -t0:1,1:2 t.py -r 1",
    "--no-python --log-dir=x --redirects 0:1,1:2 --tee 2 --event-log-handler console --logs-specs mine ./run.sh a",
    "--run-path --local-addr 10.0.0.7 --numa-binding node --signals-to-handle SIGTERM,SIGUSR1 /abs/t.py",
    "--shutdown-timeout 5 --virtual-local-rank --nproc-per-node gpu --role trainer t.py",
    "--duplicate-stdout-filters a,b,,c --duplicate_stderr_filters err --local_ranks_filter=0,1 t.py --standalone",
)


def ours(line: str) -> click.Context:
    return run.make_context("run", line.split())


def theirs() -> dict[str, argparse.Action]:
    return {action.dest: action for action in get_args_parser()._actions if action.dest != "help"}


def same(action: argparse.Action, value: Any) -> Any:
    """Our value as torchrun's parser has it: its own type, and its own form of one number of nodes."""
    if action.dest == "nnodes":
        return node_range(value)
    if action.dest == "training_script_args":
        return list(value)
    if callable(action.type) and isinstance(value, str):
        return action.type(value) if value else action.default
    return value


def test_every_flag_of_torchrun_is_known_and_no_other() -> None:
    known = {flag.parameter: flag for flag in FLAGS}
    assert set(known) == set(theirs()) - set(POSITIONAL)
    for name, action in theirs().items():
        if name in POSITIONAL:
            continue
        flag = known[name]
        spelled = {f"--{flag.name}", f"--{flag.parameter}", *([f"-{flag.short}"] if flag.short else [])}
        assert spelled == set(action.option_strings), name
        assert set(flag.choices) == set(action.choices or ()), name
        assert (flag.kind == "switch") == (action.nargs == 0), name


@pytest.mark.parametrize("line", LINES)
def test_a_command_line_has_the_same_values_in_both_parsers(line: str) -> None:
    parsed, context = vars(get_args_parser().parse_args(line.split())), ours(line)
    for name, action in theirs().items():
        mine, torchs = context.params[POSITIONAL.get(name, name)], parsed[name]
        assert same(action, mine) == same(action, torchs), name


def test_variables_give_defaults_as_for_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"nnodes": "2:3", "max_restarts": "7", "standalone": "1", "no_python": "0", "monitor_interval": "0.5"}
    values |= {"role": "trainer", "tee": "1", "rdzv_id": "r", "start_method": "fork"}
    for name, value in values.items():
        monkeypatch.setenv(f"PET_{name.upper()}", value)
    parsed = vars(get_args_parser().parse_args(["--tee", "3", "t.py"]))
    context = ours("--tee 3 t.py")
    assert {name: context.params[name] for name in values} == {name: parsed[name] for name in values}
    assert flags_given(context) == values.keys()
    monkeypatch.setenv("PET_LOGS_SPECS", "x")
    assert ours("t.py").params["logs_specs"] is None is get_args_parser().parse_args(["t.py"]).logs_specs


def test_what_is_done_in_another_way_is_told_once_for_each_thing_and_only_if_it_is_given() -> None:
    assert notices(flags_given(ours("--nproc-per-node 2 --tee 3 --max-restarts 1 t.py --rdzv-id 3"))) == []
    (line,) = notices(flags_given(ours("--rdzv-backend c10d --rdzv-endpoint a:1 --master-port 3 --rdzv-id 3 t.py")))
    assert line.startswith("--rdzv-backend, --rdzv-endpoint, --master-port: nodes meet over the cluster's bus")


def launch(line: str) -> Launch:
    context = ours(line)
    return launch_of(context.params, flags_given(context), "job-1")


def test_flags_become_the_launch_of_the_job(tmp_path: Path) -> None:
    assert launch("t.py") == Launch()
    assert launch("--max-restarts 0 t.py").max_restarts == 0, "0 is a bound, and torchrun's default is none"
    assert RESTARTS_UNBOUNDED > 10**9
    found = launch(f"--rdzv-id 42 --role r --tee 3 --log-dir {tmp_path} --local-ranks-filter 0,2 --no-python sh")
    assert (found.run_id, found.role, found.tee, found.shown_ranks, found.no_python) == ("42", "r", "3", (0, 2), True)
    assert re.fullmatch(rf"{tmp_path}/42_[0-9a-f]{{8}}", found.log_dir)
    assert launch("--standalone --rdzv-id 42 t.py").run_id == "", "as for torchrun, which makes an id of its own"
    assert launch("--tee 3 --log-dir /dev/null t.py").log_dir == ""
    # In /tmp another user could have made a directory of a known name, and exchange what lies in it.
    assert re.fullmatch(rf"{tempfile.gettempdir()}/holdfast_logs_job-1_[0-9a-f]{{8}}", launch("-r 1 t.py").log_dir)
    for wrong in ("--tee 4 t.py", "-r 0:4 t.py", "-m --no-python t", "--local-ranks-filter a t.py"):
        with pytest.raises(click.UsageError):
            launch(wrong)
    with pytest.raises(click.UsageError, match="is a file"):
        launch(f"--log-dir {__file__} t.py")


def test_numbers_of_nodes_and_ranks() -> None:
    assert (node_range("3"), node_range("1:4")) == ((3, 3), (1, 4))
    for wrong in ("0", "4:1", "1:2:3", "x", "-1", ""):
        with pytest.raises(click.BadParameter):
            node_range(wrong)
    assert ranks_per_node("4") == 4
    assert ranks_per_node("cpu") == ranks_per_node("auto") > 0, "there is no accelerator here"
    for wrong in ("0", "tpu", "-1", "gpu"):
        with pytest.raises(click.BadParameter):
            ranks_per_node(wrong)


def test_where_a_script_calls_the_launcher_on_each_node_one_command_starts_the_job() -> None:
    second = ours("--nnodes 2 --node-rank 1 --master-addr a t.py").params
    assert "node 0" in started_elsewhere(second, {})
    assert started_elsewhere(ours("--nnodes 2 --node-rank 1 --rdzv-backend c10d t.py").params, {}) == ""
    several = ours("--nnodes 2 --rdzv-backend c10d t.py").params
    assert "task 1" in started_elsewhere(several, {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"})
    assert started_elsewhere(several, {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "0"}) == ""
    one = ours("t.py").params
    assert started_elsewhere(one, {"SLURM_STEP_NUM_TASKS": "2", "SLURM_PROCID": "1"}) == ""


def test_of_the_rendezvous_configuration_the_last_call_counts() -> None:
    def last_call_s(conf: str) -> float | None:
        context = ours(f"--nnodes 1:4 --rdzv-conf {conf} t.py")
        return launch_of(context.params, flags_given(context), "job").last_call_s

    assert (last_call_s("timeout=60,last_call_timeout=5"), last_call_s("timeout=60")) == (5, None)
    for wrong in ("last_call_timeout=x", "last_call_timeout=-1"):
        with pytest.raises(click.UsageError, match="--rdzv-conf: last_call_timeout="):
            last_call_s(wrong)


def test_streams_are_named_as_for_torchrun() -> None:
    from torch.distributed.elastic.multiprocessing import Std
    from torch.distributed.elastic.multiprocessing.api import to_map

    for text in ("0", "1", "2", "3", "0:1,1:2", "1:3"):
        for rank, std in to_map(Std.from_str(text), 3).items():
            assert streams_of(text, rank) == int(std), (text, rank)


def test_what_is_shown_and_what_is_copied() -> None:
    both = Streams.OUT | Streams.ERR
    plain = Launch()
    assert (plain.shown(0, 0), plain.shown(1, 1), plain.copied(0)) == (both, Streams.NONE, Streams.NONE)
    teed = Launch(tee="1")
    assert (teed.shown(0, 0), teed.shown(1, 1), teed.copied(1)) == (both, Streams.OUT, Streams.OUT)
    apart = Launch(redirects="3")
    assert (apart.shown(0, 0), apart.copied(0)) == (Streams.NONE, both)
    filtered = Launch(tee="3", shown_ranks=(1,))
    assert (filtered.shown(0, 0), filtered.shown(3, 1), filtered.copied(0)) == (Streams.NONE, both, both)
    assert Launch(shown_ranks=(1,)).shown(3, 1) == both


def test_the_page_has_all_flags_as_the_parser_has_them() -> None:
    rows = re.findall(r"^\| `--([a-z-]+)`(?:, `-([a-z])`)? \| (.*) \|$", PAGE.read_text(), re.MULTILINE)
    assert [(name, short, text) for name, short, text in rows] == [
        (flag.name, flag.short, f"{flag.meaning} **Here:** {flag.instead}." if flag.instead else flag.meaning)
        for flag in FLAGS
    ]
