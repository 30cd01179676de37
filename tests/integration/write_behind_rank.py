"""What the ranks of test_write_behind.py run: write_behind_rank.py DIRECTORY WHAT

A script with `torch.save`, and one import.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from write_behind_state import state

from holdfast.trainer.write_behind import disk_writes, engine, switch_on

HERE = Path(sys.argv[1])
CKPT = HERE / "out" / "ckpt.pt"


class Gate:
    """Holds the writing thread until something of the script waits for it."""

    def __init__(self) -> None:
        self.is_open = threading.Event()
        self.was_waited_for = False
        publish, settle = disk_writes.publish, engine.WriteBehind.settle

        def gated(*args: Any) -> Any:
            self.is_open.wait()
            return publish(*args)

        def waits(self_: Any, **options: Any) -> None:
            if self_.on_way is not None:
                self.was_waited_for = True
                self.is_open.set()
            settle(self_, **options)

        disk_writes.publish = gated  # type: ignore[assignment]
        engine.WriteBehind.settle = waits  # type: ignore[method-assign]


def killed_after_save() -> None:
    CKPT.parent.mkdir(exist_ok=True)
    torch.save(state(1), CKPT)
    model = state(2)
    assert switch_on.finished()
    Gate()
    torch.save(model, CKPT)
    # What is changed after the answer is not in the file.
    model["model"]["w"].zero_()
    print("answered", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def look() -> None:
    print("there", CKPT.exists(), flush=True)
    if CKPT.exists():
        found = torch.load(CKPT, weights_only=True)
        print("step", found["step"], flush=True)


def each_operation() -> None:
    """Print the name of each operation that did not find the save complete, and what waited without need."""
    out = CKPT.parent
    gate = Gate()

    def case(name: str, operation: Callable[[], object], expected: object, *, waits: bool = True) -> None:
        shutil.rmtree(out, ignore_errors=True)
        (out / "step-1").mkdir(parents=True)
        (out / "step-1" / "model.pt").write_bytes(b"before")
        (out / "link.pt").symlink_to("ckpt.pt")
        gate.is_open.clear()
        gate.was_waited_for = False
        torch.save(state(3), CKPT)
        try:
            found = operation()
        except OSError as error:
            found = error
        if found != expected or gate.was_waited_for != waits:
            print("wrong:", name, repr(found)[:200], "waited" if gate.was_waited_for else "did not wait", flush=True)
        gate.is_open.set()
        for rank in switch_on._started:
            rank.settle()

    def replaced() -> bool:
        os.replace(CKPT, out / "best.pt")
        return (out / "best.pt").stat().st_size > 100_000 and not CKPT.exists()

    def rotated() -> bool:
        shutil.rmtree(out / "step-1")
        return CKPT.exists()

    def pointed() -> bool:
        (out / "latest").write_text("ckpt.pt")
        return os.listdir(out).count("ckpt.pt") == 1

    def overwritten() -> int:
        torch.save(state(4), CKPT)
        return int(torch.load(CKPT)["step"])

    def by_file_object() -> int:
        with CKPT.open("wb") as file:
            torch.save(state(5), file)
        return int(torch.load(CKPT)["step"])

    def copied() -> int:
        shutil.copy(CKPT, out / "copy.pt")
        return int(torch.load(out / "copy.pt")["step"])

    def moved_folder() -> bool:
        os.rename(out, HERE / "archive")
        whole = (HERE / "archive" / "ckpt.pt").exists()
        shutil.rmtree(HERE / "archive")
        return whole

    def forked() -> int:
        child = os.fork()
        if child == 0:
            torch.save(state(6), out / "of_fork.pt")
            os._exit(int(not CKPT.exists()) + 2 * int(not (out / "of_fork.pt").exists()))
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def removed() -> bool:
        CKPT.unlink()
        return CKPT.exists()

    def logged() -> bool:
        with (out / "log.txt").open("a") as log:
            log.write("saved\n")
        return (out / "step-1" / "model.pt").read_bytes() == b"before"

    case("exists", CKPT.exists, True)
    case("a link to it", lambda: (out / "link.pt").exists(), True)
    case("getsize", lambda: os.path.getsize(CKPT) > 100_000, True)
    case("access", lambda: os.access(CKPT, os.R_OK), True)
    case("load", lambda: int(torch.load(CKPT)["step"]), 3)
    case("load by mmap", lambda: int(torch.load(CKPT, mmap=True)["step"]), 3)
    case("glob", lambda: sorted(path.name for path in out.glob("*.pt")), ["ckpt.pt", "link.pt"])
    case("replace", replaced, True)
    case("rotation", rotated, True)
    case("latest", pointed, True)
    case("overwrite", overwritten, 4)
    case("file object", by_file_object, 5)
    case("copy", copied, 3)
    case("moved folder", moved_folder, True)
    case("remove", removed, False)
    case("another program", lambda: subprocess.call(["test", "-s", CKPT]), 0)
    case("fork", forked, 0)
    case("a log and the checkpoint before", logged, True, waits=False)
    print("tried", flush=True)


def disk_is_full() -> None:
    """The disk refuses a save that was answered: the next operation that could do harm, or save, raises it."""
    CKPT.parent.mkdir(exist_ok=True)
    (CKPT.parent / "before.pt").write_bytes(b"good")

    def refuses(*_: Any) -> Any:
        raise OSError(errno.ENOSPC, "No space left on device")

    publish, disk_writes.publish = disk_writes.publish, refuses
    torch.save(state(1), CKPT)
    print("exists", CKPT.exists(), flush=True)
    try:
        (CKPT.parent / "before.pt").unlink()
    except OSError as error:
        print("remove", error.errno == errno.ENOSPC, (CKPT.parent / "before.pt").exists(), flush=True)
    torch.save(state(2), CKPT)
    try:
        torch.save(state(3), CKPT)
    except OSError as error:
        print("save", error.errno == errno.ENOSPC, flush=True)
    if sys.argv[2] == "full, at the end":
        torch.save(state(4), CKPT)
        print("ends", flush=True)
        sys.exit(0 if switch_on.finished() else 7)
    disk_writes.publish = publish
    torch.save(state(5), CKPT)
    print("step", torch.load(CKPT)["step"], flush=True)


def memory_is_full() -> None:
    CKPT.parent.mkdir()
    torch.save(state(1), CKPT)
    print("there at once" if switch_on._started[0].on_way is None and CKPT.exists() else "not there", flush=True)


def children() -> None:
    """What a rank starts saves for itself, though it inherits the rank's variables and runs the same import."""
    CKPT.parent.mkdir()
    torch.save(state(1), CKPT)
    program = (
        "import sys, torch, holdfast.trainer.memory_checkpoints\n"
        "from holdfast.trainer.write_behind import switch_on\n"
        "print('keeps' if switch_on._started else 'does not keep', torch.load(sys.argv[1])['step'])"
    )
    print(subprocess.check_output([sys.executable, "-c", program, CKPT], text=True).strip(), flush=True)


def parts_of_others() -> None:
    """A writer removes what it left itself, and nothing that another rank is writing beside it."""
    CKPT.parent.mkdir()
    for name in ("ckpt.pt", "other.pt"):
        (CKPT.parent / f"{disk_writes._parts_prefix(name)}x").mkdir()
        (CKPT.parent / f"{disk_writes._parts_prefix(name)}x" / name).write_bytes(b"half")
    disk_writes.remove_parts(str(CKPT))
    print([path.name for path in CKPT.parent.rglob("*.pt")], flush=True)


def checkpointer() -> None:
    """The steps that a script keeps itself have the memory for themselves."""
    from holdfast.trainer.checkpoint import Checkpointer

    own = Checkpointer()
    CKPT.parent.mkdir()
    torch.save(state(1), CKPT)
    own.keep(1, {"weights": torch.ones(3)})
    restored = {"weights": torch.zeros(3)}
    print(switch_on._started[0].on_way is None and CKPT.exists(), own.restore(restored), flush=True)


def odd_places() -> None:
    out = CKPT.parent
    out.mkdir(exist_ok=True)
    elsewhere = HERE / "elsewhere"
    elsewhere.mkdir()
    (out / "through.pt").symlink_to(elsewhere / "real.pt")
    (out / "one.pt").write_bytes(b"old")
    os.link(out / "one.pt", out / "two.pt")
    (out / "mine.pt").write_bytes(b"old")
    (out / "mine.pt").chmod(0o640)
    for name in ("through.pt", "one.pt", "mine.pt", "größe.pt", "second"):
        torch.save(state(7), out / name)
    torch.save(state(7), "relative.pt")
    torch.save(state(7), "/dev/null")
    print("link kept", (out / "through.pt").is_symlink() and (elsewhere / "real.pt").is_file(), flush=True)
    print("both names", torch.load(out / "two.pt")["step"], flush=True)
    print("rights", oct((out / "mine.pt").stat().st_mode & 0o777), flush=True)
    try:
        torch.save(state(7), out / "no" / "such" / "folder.pt")
    except Exception as error:  # noqa: BLE001 - torch's own
        print("error", type(error).__name__, flush=True)
    try:
        torch.save({"a": lambda: 0}, out / "mine.pt")
    except Exception as error:  # noqa: BLE001
        print("error", type(error).__name__, torch.load(out / "mine.pt")["step"], flush=True)
    print("left over", [path.name for path in out.iterdir() if path.name.startswith(".")], flush=True)


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING, stream=sys.stdout, format="%(message)s")
    os.chdir(HERE)
    # This is all that a script does.
    import holdfast.trainer.memory_checkpoints  # noqa: F401

    what = sys.argv[2]
    if what == "killed":
        killed_after_save()
    elif what == "look":
        look()
    elif what == "operations":
        each_operation()
    elif what == "checkpointer":
        checkpointer()
    elif what == "children":
        children()
    elif what == "parts":
        parts_of_others()
    elif what == "full memory":
        memory_is_full()
    elif what.startswith("full"):
        disk_is_full()
    elif what == "odd":
        odd_places()
