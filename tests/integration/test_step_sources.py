"""Where steps come from, for scripts that report none: real ranks, real frameworks where they are installed.

Each script notes in a file what it did; the first generation is killed, the second one goes on as the script does.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from holdfast.node.ledger.ledger_layout import LedgerSnapshot, Source
from holdfast.node.ledger.ledger_reader import LedgerReader
from tests.warm_python import WarmPython

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

KILLED_AT, STEPS = 13, 20

LOOP = """
import json, os, pathlib, pickle, sys
import torch, torch.distributed.checkpoint
{truth}
here, optimizer_name, restores = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
model = torch.nn.Linear(4, 1)
optimizer = getattr(torch.optim, optimizer_name)(model.parameters(), lr=0.01)
done = 0
if restores == "torch" and (here / "ckpt.pt").exists():
    saved = torch.load(here / "ckpt.pt")
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    done = saved["iter_num"]
if restores.startswith("pickle") and (here / "ckpt.pkl").exists():
    weights, done = pickle.loads((here / "ckpt.pkl").read_bytes())
    model.load_state_dict(weights)
if restores == "dcp" and (here / "dcp").exists():
    state = {{"model": model.state_dict(), "step": 0}}
    torch.distributed.checkpoint.load(state, checkpoint_id=str(here / "dcp"))
    model.load_state_dict(state["model"])
    done = state["step"]
begin(done)
while done < {steps}:
    for _ in range(2):
        model(torch.ones(2, 4)).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    done += 1
    if done % 5 == 0:
        state = {{"model": model.state_dict(), "optimizer": optimizer.state_dict(), "iter_num": done}}
        torch.save(state, here / "ckpt.pt")
        if restores == "dcp":
            whole = {{"model": state["model"], "step": done}}
            torch.distributed.checkpoint.save(whole, checkpoint_id=str(here / "dcp"))
        (here / "ckpt.pkl").write_bytes(pickle.dumps((state["model"], done)))
    if restores == "pickle, prints":
        print(f" iteration {{done:8d}}/{{20:8d}} | elapsed time per iteration (ms): 20.1 | skipped iterations: 0 |")
    step(done)
"""

TRUTH = """
import os, signal
def begin(done):
    print("began", done, file=open(os.environ["TRUTH"], "a"))
def step(done):
    # The process that counts may not have noted this step yet: it is killed in its next one.
    if os.environ["HOLDFAST_GENERATION"] == "1" and done > KILLED_AT:
        os.kill(os.getpid(), signal.SIGKILL)
    print("done", done, file=open(os.environ["TRUTH"], "a"))
""".replace("KILLED_AT", str(KILLED_AT))

TRANSFORMERS = """
import os, sys, torch
from transformers import Trainer, TrainerCallback, TrainingArguments
{truth}
class Data(torch.utils.data.Dataset):
    def __len__(self): return 1000
    def __getitem__(self, i): return {{"x": torch.ones(4), "labels": torch.ones(1)}}
class Net(torch.nn.Module):
    def __init__(self): super().__init__(); self.layer = torch.nn.Linear(4, 1)
    def forward(self, x, labels): return {{"loss": (self.layer(x) - labels).square().mean()}}
class Truth(TrainerCallback):
    def on_train_begin(self, args, state, control, **_): begin(state.global_step)
    def on_step_end(self, args, state, control, **_): step(state.global_step)
settings = TrainingArguments(sys.argv[1] + "/out", max_steps={steps}, gradient_accumulation_steps=2, save_steps=5,
                             per_device_train_batch_size=2, report_to=[], use_cpu=True, disable_tqdm=True)
trainer = Trainer(Net(), settings, train_dataset=Data(), callbacks=[Truth()])
trainer.train(resume_from_checkpoint=os.path.isdir(sys.argv[1] + "/out/checkpoint-10"))
"""

LIGHTNING = """
import os, sys, torch, lightning
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
{truth}
class Net(lightning.LightningModule):
    def __init__(self): super().__init__(); self.layer = torch.nn.Linear(4, 1)
    def training_step(self, batch, _): return self.layer(batch[0]).square().mean()
    def configure_optimizers(self): return torch.optim.SGD(self.parameters(), 0.01)
class Truth(Callback):
    def on_train_start(self, trainer, _): begin(trainer.global_step); self.last = trainer.global_step
    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step != self.last:
            self.last = trainer.global_step
            step(self.last)
last = sys.argv[1] + "/last.ckpt"
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(1000, 4)), batch_size=2)
trainer = lightning.Trainer(accelerator="cpu", devices=1, max_steps={steps}, accumulate_grad_batches=2, logger=False,
                            enable_progress_bar=False, enable_model_summary=False,
                            callbacks=[ModelCheckpoint(sys.argv[1], every_n_train_steps=5, save_last=True), Truth()])
trainer.fit(Net(), data, ckpt_path=last if os.path.exists(last) else None)
"""


def run(
    folder: Path, script: str, generation: int, *arguments: str, is_forked: bool = False
) -> tuple[LedgerSnapshot, int]:
    """Run the script as the only rank of a generation; return its ledger and its exit code.

    `is_forked`: as by a zygote, otherwise in a process that imports torch for itself.
    """
    (folder / "script.py").write_text(script.format(truth=TRUTH, steps=STEPS))
    submitted_ms = folder / "submitted"
    if not submitted_ms.exists():
        submitted_ms.write_text(str(round(time.time() * 1000)))
    environment = os.environ | {
        "RANK": "0",
        "HOLDFAST_LEDGER": str(folder / f"{generation}.ledger"),
        "HOLDFAST_REPORTS": str(folder / "reports"),
        "HOLDFAST_GENERATION": str(generation),
        "HOLDFAST_JOB_SUBMITTED_MS": submitted_ms.read_text(),
        "TRUTH": str(folder / "truth"),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
    }
    command = [sys.executable, "-m", "holdfast.trainer.rank", str(folder / "script.py"), str(folder), *arguments]
    starts = WarmPython if is_forked else subprocess.Popen[str]
    with (folder / f"{generation}.output").open("a") as output:
        code = starts(command, env=environment, cwd=folder, stdout=output, stderr=output).wait()
    assert code in (0, -signal.SIGKILL), Path(output.name).read_text()
    reader = LedgerReader(folder / f"{generation}.ledger")
    try:
        return reader.snapshot(), code
    finally:
        reader.close()


def truth(folder: Path) -> tuple[int, int]:
    """Return what the script did: its steps before the kill that are noted, and where it went on."""
    lines = [line.split() for line in (folder / "truth").read_text().splitlines()]
    begins = [place for place, line in enumerate(lines) if line[0] == "began"]
    return int(lines[begins[1] - 1][1]), int(lines[begins[1]][1])


@pytest.mark.parametrize(
    ("optimizer", "restores", "source", "is_known"),
    [
        ("AdamW", "torch", Source.RESTORED, True),
        ("SGD", "torch", Source.RESTORED, True),
        ("SGD", "dcp", Source.RESTORED, True),
        ("AdamW", "nothing", Source.OPTIMIZER, True),
        ("SGD", "pickle", Source.OPTIMIZER, False),
        ("SGD", "pickle, prints", Source.LOG, True),
    ],
)
def test_a_loop_of_its_own(tmp_path: Path, optimizer: str, restores: str, source: Source, is_known: bool) -> None:
    first, code = run(tmp_path, LOOP, 1, optimizer, restores, is_forked=True)
    # Numbers of output are the script's own, from 1.
    by_log = source is Source.LOG
    assert (code, first.first, first.is_start_known) == (-signal.SIGKILL, int(by_log), True)
    second, _ = run(tmp_path, LOOP, 2, optimizer, restores, is_forked=True)
    reached, resumed = truth(tmp_path)
    assert reached == KILLED_AT and (resumed == 0) == (restores == "nothing")
    # Counted steps begin at 0; the step of the kill was made as well.
    assert first.step == KILLED_AT
    assert (second.source, second.is_start_known) == (source, is_known)
    if is_known:
        assert (second.first, second.step) == ((resumed + 1, STEPS - resumed - 1) if by_log else (resumed, STEPS - 1))


WITHOUT_A_COUNT = """
import io, pathlib, pickle, shutil, sys
import torch, torch.distributed.checkpoint as dcp
{truth}
here, way = pathlib.Path(sys.argv[1]), sys.argv[2]
place, done = here / "ckpt", 0
torch.manual_seed(0)
model = torch.nn.Embedding(1000, 4) if way == "few rows" else torch.nn.Linear(4, 4)
if way == "began with more":
    model.load_state_dict(torch.load(here / "pretrained.pt")["model"])
if place.exists():
    saved = {{"model": model.state_dict(), "step": 0, "done": 0}}
    if way in ("few rows", "began with more"):
        saved = pickle.loads(place.read_bytes())
    elif way == "folder":
        dcp.load(saved, checkpoint_id=str(place))
    else:
        saved = torch.load(io.BytesIO(place.read_bytes()) if way == "stream" else place)
    model.load_state_dict(saved["model"])
    done = saved["done"]
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
begin(done)
while done < {steps}:
    given = torch.tensor([3, 5 + done]) if way == "few rows" else torch.ones(2, 4)
    model(given).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    done += 1
    if done % 10 == 0:
        # Batches, of which three are one step.
        state = {{"model": model.state_dict(), "step": 3 * done, "done": done}}
        if way in ("few rows", "began with more"):
            place.write_bytes(pickle.dumps(state))
        elif way == "folder":
            dcp.save(state, checkpoint_id=str(place))
        elif way == "stream":
            torch.save(state, stream := io.BytesIO())
            place.write_bytes(stream.getvalue())
        else:
            torch.save(state, here / "last")
            shutil.copy(here / "last", place)
    step(done)
"""


@pytest.mark.parametrize("way", ["copied", "stream", "folder", "few rows", "began with more"])
def test_a_number_that_counts_something_else_is_not_taken_for_the_step(
    tmp_path: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The optimizer keeps no count, and the file that is loaded is not the one that was saved."""
    monkeypatch.setenv("HOLDFAST_JOB_DIR", str(tmp_path / "job"))
    if way == "began with more":
        torch.save({"model": torch.nn.Linear(4, 4).state_dict(), "step": 1000}, tmp_path / "pretrained.pt")
        os.utime(tmp_path / "pretrained.pt", (1.0, 1.0))
    run(tmp_path, WITHOUT_A_COUNT, 1, way, is_forked=True)
    second, _ = run(tmp_path, WITHOUT_A_COUNT, 2, way, is_forked=True)
    assert truth(tmp_path) == (KILLED_AT, 10)
    is_known = way in ("copied", "stream", "folder")
    assert (second.is_start_known, second.first) == (is_known, 10 if is_known else 0)


@pytest.mark.parametrize(
    ("framework", "script"),
    [("transformers", TRANSFORMERS), ("lightning", LIGHTNING)],
    ids=["transformers", "lightning"],
)
def test_a_framework_counts(tmp_path: Path, framework: str, script: str) -> None:
    pytest.importorskip(framework)
    first, code = run(tmp_path, script, 1)
    assert (code, first.first, first.source) == (-signal.SIGKILL, 1, Source.FRAMEWORK)
    assert first.source_name.startswith(framework)
    second, _ = run(tmp_path, script, 2)
    reached, resumed = truth(tmp_path)
    assert (reached, resumed) == (KILLED_AT, 10)
    assert first.step == KILLED_AT + 1
    assert (second.first, second.step, second.is_start_known) == (resumed + 1, STEPS, True)


BROKEN = """
import sys, types, importlib.abc, importlib.machinery
class Loader(importlib.abc.Loader):
    def create_module(self, spec): return types.ModuleType(spec.name)
    def exec_module(self, module):
        module.__path__ = []
        if module.__name__ == "transformers.trainer_callback":
            class CallbackHandler:
                def on_train_begin(self, *_): return "began"
                def on_step_end(self, *_): return "made"
            module.CallbackHandler = CallbackHandler
class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.partition(".")[0] in ("transformers", "deepspeed"):
            return importlib.machinery.ModuleSpec(name, Loader(), is_package=True)
# After the finder of the hooks, and before those that find what is installed.
sys.meta_path.insert(1, Finder())
import transformers.trainer_callback, deepspeed.runtime.engine
{truth}
handler = transformers.trainer_callback.CallbackHandler()
# Neither has a state with a step, and the engine has no class.
assert handler.on_train_begin(None) == "began" and handler.on_step_end(None) == "made"
assert handler.on_step_end(None) == "made"
import torch
layer = torch.nn.Linear(2, 1)
optimizer = torch.optim.AdamW(layer.parameters())
for _ in range({steps}):
    layer(torch.ones(2)).sum().backward()
    optimizer.step()
"""


def test_a_framework_of_another_shape_breaks_no_script(tmp_path: Path) -> None:
    """Modules that have the names of frameworks and nothing else in common with them."""
    ledger, code = run(tmp_path, BROKEN, 1)
    assert (code, ledger.step, ledger.source) == (0, STEPS - 1, Source.OPTIMIZER)
    reports = (tmp_path / "reports").read_text()
    assert reports.count("hook_failed") == 3, "one for each hook"
