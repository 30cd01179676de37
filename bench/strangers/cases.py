"""The scripts: how each is launched, where it writes its own log, and when it is struck."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

SCRIPTS = Path(__file__).with_name("scripts")
MEET = ("--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0")
TWO = ("--nnodes=1", "--nproc-per-node=2", *MEET)
_PLAIN = re.compile(r"^(?P<step>\d+) (?P<loss>\S+)$")
_EPOCHS = re.compile(r"^(?P<epoch>\d+),(?P<step>\d+),(?P<loss>\S+)$")


class Case(NamedTuple):
    """One script."""

    name: str
    style: str
    files: str
    """What is copied: a script, or the contents of a folder."""
    script: tuple[str, ...]
    """The script and its arguments."""
    log: str
    """Where it notes steps and losses."""
    strike_at: int
    """Number of noted steps after which it is struck: between two of its checkpoints."""
    launch: tuple[str, ...] = TWO
    """Flags of the launcher."""
    line: re.Pattern[str] = _PLAIN
    """A line of its log."""
    packages: tuple[str, ...] = ()
    prepare: tuple[str, ...] = ()
    """A script that makes its data."""
    before: tuple[str, ...] = ()
    """Script and arguments of a run that comes before the one that counts."""
    long: tuple[str, ...] = ()
    """Further arguments, by which it trains for minutes; (): no node is slowed down under it."""
    per_epoch: int = 0
    """Steps of an epoch, if they are numbered from 0 in each."""
    steps_per_line: float = 1
    """Steps of the optimizer that is counted, for each line of the log."""
    is_exact: bool = True
    """It restores all that its losses depend on."""
    has_count: bool = True
    """It shows from which step it goes on; otherwise "unknown" is the truth."""
    child: str = ""
    """What is struck: a child of rank 0 with this in its command line, the last one; "": the process of rank 1."""
    quick: bool = False
    """It is among those of --quick."""

    @property
    def source(self) -> Path:
        return SCRIPTS / self.files


NANO_LINE = re.compile(r"^iter (?P<step>\d+) loss (?P<loss>\S+)$")
NANO = ("train.py", "config/train_tiny.py")

CASES = (
    Case(
        "mingpt-ddp",
        "minGPT-ddp: Hydra, epochs, one snapshot",
        "mingpt_ddp",
        ("main.py", "trainer_config.max_epochs=10"),
        "train_log.csv",
        strike_at=16 * 5 + 9,
        line=_EPOCHS,
        per_epoch=16,
        packages=("hydra-core", "fsspec"),
        long=("trainer_config.max_epochs=1000",),
    ),
    Case(
        "nanogpt",
        "nanoGPT: configurator.py by exec, ckpt.pt in out_dir, never resumed",
        "nanogpt",
        NANO,
        "out-tiny/log.txt",
        strike_at=73,
        line=NANO_LINE,
        prepare=("prepare.py",),
        is_exact=False,
        quick=True,
    ),
    Case(
        "nanogpt-resume",
        "nanoGPT, --init_from=resume after a run of 100 steps",
        "nanogpt",
        (*NANO, "--init_from=resume", "--max_iters=250"),
        "out-tiny/log.txt",
        strike_at=73,
        line=NANO_LINE,
        prepare=("prepare.py",),
        before=(*NANO, "--max_iters=100"),
        is_exact=False,
        long=("--max_iters=20000",),
    ),
    Case(
        "hf-trainer",
        "Hugging Face Trainer",
        "hf_trainer.py",
        (
            *("hf_trainer.py", "--output_dir=out", "--max_steps=200", "--save_steps=50", "--logging_steps=1"),
            *("--use_cpu", "--report_to=none", "--per_device_train_batch_size=4", "--disable_tqdm=True"),
        ),
        "out/log.txt",
        strike_at=83,
        packages=("transformers", "accelerate"),
        long=("--max_steps=20000",),
    ),
    Case(
        "lightning",
        "Lightning: DDP, ModelCheckpoint",
        "lightning_fit.py",
        ("lightning_fit.py", "--max_steps=200"),
        "lit/log.txt",
        strike_at=83,
        line=re.compile(r"^batch of step (?P<step>\d+) loss (?P<loss>\S+)$"),
        packages=("lightning",),
        is_exact=False,
        long=("--max_steps=20000",),
    ),
    Case(
        "accelerate",
        "accelerate: accumulated gradients, save_state",
        "accelerate_loop.py",
        ("accelerate_loop.py",),
        "states/log.txt",
        strike_at=90,
        packages=("accelerate",),
        steps_per_line=0.5,
        long=("--num_epochs=400",),
    ),
    Case(
        "fsdp2-dcp",
        "FSDP2, torch.distributed.checkpoint",
        "fsdp2_dcp.py",
        ("fsdp2_dcp.py",),
        "log.txt",
        strike_at=65,
        long=("--steps=20000",),
        quick=True,
    ),
    Case(
        "elastic-record",
        "torch's elastic example: @record, SGD, epochs",
        "elastic_record.py",
        ("elastic_record.py", "--checkpoint-file=ck/checkpoint.pth.tar"),
        "log.csv",
        strike_at=70,
        launch=("--nnodes=1:1", "--nproc_per_node=2", "--max_restarts=3", "--rdzv_id=42", *MEET),
        line=_EPOCHS,
        per_epoch=20,
    ),
    Case(
        "torchtitan",
        "torchtitan: its launch line, -m, relative imports, TOML",
        "titan",
        ("-m", "torchtitan.train", "--job.config_file", "./configs/debug.toml"),
        "outputs/log.txt",
        strike_at=65,
        launch=(
            *("--nproc_per_node=2", "--rdzv_backend", "c10d", "--rdzv_endpoint=localhost:0"),
            *("--local-ranks-filter", "0", "--role", "rank", "--tee", "3"),
        ),
    ),
    Case(
        "megatron",
        "Megatron-LM: its launch line, arguments, log lines, sharded checkpoints",
        "pretrain_gpt.py",
        (
            *("pretrain_gpt.py", "--tensor-model-parallel-size", "2", "--num-layers", "2", "--hidden-size", "32"),
            *("--micro-batch-size", "4", "--global-batch-size", "4", "--train-iters", "150", "--log-interval", "1"),
            *("--save-interval", "40", "--save", "ck", "--load", "ck", "--distributed-backend", "gloo"),
        ),
        "log.txt",
        strike_at=65,
        launch=(
            *("--nproc_per_node", "2", "--nnodes", "1", "--node_rank", "0", "--rdzv_id", "7"),
            *("--rdzv_backend", "c10d", "--rdzv_endpoint", "localhost:0", "--log_dir", "logs", "--tee", "3"),
        ),
        long=("--train-iters", "20000"),
    ),
    Case(
        "gan",
        "a GAN: two optimizers, accumulated gradients, files beside the script",
        "gan.py",
        ("gan.py",),
        "log.csv",
        strike_at=70,
        line=_EPOCHS,
        per_epoch=20,
        steps_per_line=2,
    ),
    Case(
        "workers-signals",
        "forked DataLoader workers, its own signal handlers, SGD, pickle, prints no steps",
        "workers_signals.py",
        ("workers_signals.py",),
        "progress.txt",
        strike_at=73,
        has_count=False,
        quick=True,
    ),
    Case(
        "parameter-server",
        "a parameter server by send and recv; one rank has an optimizer",
        "parameter_server.py",
        ("parameter_server.py",),
        "served.txt",
        strike_at=73,
    ),
    Case(
        "silent",
        "prints nothing, applies gradients by hand",
        "silent.py",
        ("silent.py",),
        "trace.txt",
        strike_at=73,
        has_count=False,
    ),
    Case(
        "module",
        "run with -m, a package with relative imports, files beside the package",
        "relative",
        ("-m", "app"),
        "app/runs/history",
        strike_at=73,
    ),
    Case(
        "spawned",
        "starts its own ranks by torch.multiprocessing.spawn",
        "spawned.py",
        ("spawned.py",),
        "log.txt",
        strike_at=73,
        launch=("--nproc-per-node=1", *MEET),
        has_count=False,
        # Beside the workers, spawn has a process that tracks resources.
        child="spawn_main",
    ),
    Case(
        "nested",
        "calls torchrun itself",
        "nested",
        ("main.py",),
        "log.txt",
        strike_at=73,
        launch=("--nproc-per-node=1", *MEET),
        has_count=False,
        child="inner.py",
    ),
    Case(
        "preemptible",
        "SIGTERM ends it with 0, errors are tried again, another working directory, SGD, a list in its snapshot",
        "preemptible.py",
        ("preemptible.py",),
        "place/work/log.txt",
        strike_at=73,
    ),
    Case(
        "rpc",
        "torch.distributed.rpc: a trainer and a server that has the optimizer",
        "rpc_server.py",
        ("rpc_server.py",),
        "log.txt",
        strike_at=73,
    ),
)
