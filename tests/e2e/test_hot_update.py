"""A job gets other code while it runs, and gets rid of it again; what it trains is not disturbed by any of it."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cluster import JOBS, Cluster
from job import Job
from records import check_record

pytestmark = pytest.mark.e2e


class Source:
    """A source tree of the job `fold`, outside of any repository."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True)
        for name in ("fold.py", "arithmetic.py"):
            shutil.copy(JOBS / name, root)
        self._fold = (root / "fold.py").read_text()

    @property
    def script(self) -> Path:
        return self.root / "fold.py"

    def say(self, words: str, *, then: str = "") -> None:
        """Code that prints these words at its begin on every rank, and does something in its first step."""
        first = "    args = parse_arguments()\n"
        begun = self._fold.replace(first, f"{first}    print({words!r})\n")
        self.script.write_text(begun.replace("        step += 1\n", f"        step += 1\n        {then}\n", 1))


def versions(cluster: Cluster, job: Job) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(cluster.command("versions", "--json", job.name).stdout)
    return rows


def verdict(cluster: Cluster, job: Job, number: int) -> str:
    sql = "select verdict from controller.code_versions where job = $1 and number = $2"
    (row,) = cluster.query(sql, job.name, number)
    return str(row["verdict"])


def begins(job: Job, words: str, count: int = 1) -> None:
    job.until(f"{words!r} is printed {count} times", lambda: job.output().splitlines().count(words) == count)


def test_updates_and_rollbacks_in_place(holdfast: Cluster, tmp_path: Path) -> None:
    source = Source(tmp_path / "source")
    source.say("code one")
    job = holdfast.run("--keep-bytes", "8192", script=source.script)
    job.until_step(10)
    nodes = holdfast.members(job)

    source.say("code two")
    told = holdfast.command("update", job.name, "--from", source.root, "--urgent", "-m", "the second").stdout
    assert f"job {job.name} restarts with code version" in told
    begins(job, "code two")
    job.until_step(job.step() + 5, generation=2)
    assert holdfast.members(job) == nodes and not holdfast.incidents(job)

    # What is edited in place is no version, and a restart does not bring it in; nor does waiting alone what waits.
    source.say("code three")
    job.kill_rank(3)
    begins(job, "code two", count=2)
    job.until_step(job.step() + 5, generation=3)
    holdfast.command("update", job.name, "--from", source.root)
    assert [row["state"] for row in versions(holdfast, job)] == [None, "runs", "waits"]
    job.until_step(job.step() + 5, generation=3)
    assert "code three" not in job.output()
    job.kill_rank(0)
    begins(job, "code three")
    job.until_step(job.step() + 5, generation=4)

    source.say("code four")
    holdfast.command("update", job.name, "--from", source.root, "--within", "1s")
    begins(job, "code four")
    # Whatever of the others was found good meanwhile: this is the last.
    job.until("version 4 is good", lambda: verdict(holdfast, job, 4) == "good")

    source.say("code five", then="if rank == 1: batch(step)")
    holdfast.command("update", job.name, "--from", source.root, "--urgent")
    begins(job, "code five")
    begins(job, "code four", count=2)
    job.until_step(job.step() + 5, generation=7)
    assert holdfast.members(job) == nodes

    holdfast.command("rollback", job.name, "--to", "1")
    begins(job, "code one", count=2)
    job.until_step(job.step() + 5, generation=8)
    job.finish()
    check_record(holdfast, job)

    rows = versions(holdfast, job)
    assert {row["verdict"] for row in rows[:4]} <= {"trained", "good"}
    assert (rows[4]["verdict"], "TypeError: batch() missing 1 required" in rows[4]["why"]) == ("bad", True)
    assert rows[1]["message"] == "the second" and rows[1]["parent"] == rows[0]["version"]
    updates = holdfast.events(job, "hot_update")
    assert [(event["number"], event.get("rides_on_failure", False)) for event in updates] == [
        (2, False),
        (3, True),
        (4, False),
        (5, False),
    ]
    back, by_hand = holdfast.events(job, "rollback")
    assert (back["number"], back["changed"], back.get("is_automatic")) == (4, ["fold.py"], True)
    assert "TypeError" in back["reason"] and "since version 4" in back["reason"]
    assert (by_hand["number"], by_hand.get("is_automatic", False)) == (1, False)
    symptoms = sorted(row["symptom"] for row in holdfast.incidents(job))
    assert symptoms == ["killed_by_signal", "killed_by_signal", "user_exception"]
    assert not holdfast.events(job, "eviction")

    holdfast.command("versions", job.name, "export", "2", tmp_path / "exported")
    assert "code two" in (tmp_path / "exported" / "fold.py").read_text()
    diff = holdfast.command("versions", job.name, "diff", "4", "5", "--patch").stdout
    assert "+        if rank == 1: batch(step)" in diff
    over = holdfast.command("update", job.name, "--from", source.root, "--urgent", check=False)
    assert over.returncode == 1 and "is over already" in over.stderr


def test_a_module_runs_at_its_own_path_with_its_data_beside_it(holdfast: Cluster) -> None:
    # Where `holdfast run` is started.
    root = holdfast.directory / "scratch" / f"job-{len(holdfast.jobs)}"
    package = root / "package"
    package.mkdir(parents=True)
    subprocess.run(["git", "init", "-q", root], check=True)
    (root / ".gitignore").write_text("data\njournal\nstd*\n")
    (package / "data").write_text("the data")
    (package / "__init__.py").touch()
    (package / "part.py").write_text("WHERE = __file__\n")
    (package / "train.py").write_text(
        "import os, pathlib, package.part\n"
        "print(os.getcwd(), package.part.WHERE, (pathlib.Path(__file__).parent / 'data').read_text(), sep=';')\n"
    )
    job = holdfast.run(script=Path("package.train"), options=["--module"], nnodes=1, nproc=1)
    assert job.exit_code() == 0, job.errors()
    where, part, data = job.output().strip().split(";")
    assert len(versions(holdfast, job)) == 1
    assert (where, part, data) == (str(root), str(package / "part.py"), "the data")


def test_a_bug_in_the_first_version_stops_the_job_with_the_reason(holdfast: Cluster, tmp_path: Path) -> None:
    source = Source(tmp_path / "source")
    source.say("code one", then="batch(step)")
    job = holdfast.run(script=source.script, nnodes=1)
    assert job.exit_code() == 1
    assert "TypeError: batch() missing 1 required positional argument" in job.errors()
    assert not holdfast.events(job, "rollback")
