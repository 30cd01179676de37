"""`holdfast ckpt` on what real ranks have saved: listed, verified, damaged, exported, imported, restored."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import safetensors
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from ckpt_ranks import KINDS, WEIGHT
from click.testing import CliRunner, Result
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from holdfast.cli.checkpoints import ckpt_locations
from holdfast.cli.connect import database
from holdfast.cli.main import main
from holdfast.fresh_ids import uuid7
from holdfast.trainer.checkpoint import Checkpointer
from holdfast.trainer.checkpoint.exchange import export
from holdfast.trainer.checkpoint.layout.manifest import decode_manifest
from holdfast.trainer.checkpoint.layout.manifest_checks import decode_index
from tests.integration.historian_scene import new_database
from tests.warm_python import WARM_RANKS, run_warm

pytestmark = pytest.mark.integration

RANKS = Path(__file__).with_name("ckpt_ranks.py")


def run_ranks(what: str, directory: Path) -> None:
    run_warm([sys.executable, WARM_RANKS, "2", RANKS, what, directory], timeout=100)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("saved") / "checkpoints"
    run_ranks("save", directory)
    return directory


@pytest.fixture
def place(saved: Path, tmp_path: Path) -> Path:
    """A copy, to damage."""
    return Path(shutil.copytree(saved, tmp_path / "checkpoints"))


def ckpt(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(main, ["ckpt", *map(str, arguments)])
    assert result.exit_code == code, result.output
    return result


def flip(path: Path, place: int) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 4
    path.write_bytes(data)


def test_ls_tells_each_step_and_what_became_of_it(place: Path) -> None:
    shutil.copytree(place / "step-00000007", place / "step-00000005.rolled-back")
    shutil.copytree(place / "step-00000007", place / "generation-3.job.1/step-00000011")
    shutil.copytree(place / "step-00000007", place / "step-00000006.damaged")
    (place / "step-00000007" / "rank-00001.part").write_bytes(b"short")
    rows = {row["step"]: row for row in json.loads(ckpt("ls", "--path", place, "--json").stdout)}
    assert {step: row["state"] for step, row in rows.items()} == {
        5: "rolled-back",
        6: "damaged",
        7: "damaged",
        9: "complete",
        11: "unfinished",
    }
    newest = rows[9]
    assert (newest["world_size"], newest["mesh"], newest["note"]) == (2, {"dp": 2}, "")
    assert newest["bytes"] == sum(part.stat().st_size for part in (place / "step-00000009").glob("*.part"))
    assert datetime.fromisoformat(newest["saved_at"]) <= datetime.now(UTC)
    assert "rank-00001.part: has 5 bytes" in rows[7]["note"]
    lines = ckpt("ls", "--path", place).stdout.splitlines()
    assert lines[0].split() == ["STEP", "STATE", "SIZE", "AGE", "RANKS", "MESH", "WHERE", "NOTE"]
    assert lines[4].split()[:2] == ["9", "complete"] and "dp=2" in lines[4]


def test_verify_reads_all_and_names_what_is_damaged(place: Path) -> None:
    result = ckpt("verify", "--path", place)
    assert [line.split(":")[0] for line in result.stdout.splitlines()] == ["step 7", "step 9"]
    assert result.stdout.count("whole") == 2
    part = place / "step-00000009/rank-00001.part"
    described = next(
        it for it in decode_manifest((part.parent / "manifest.json").read_bytes()).parts if it.name == part.name
    )
    entries = decode_index(described, part.read_bytes()[described.index_offset :])
    weight = next(entry for entry in entries if entry.key == "model.weight")
    flip(part, weight.offset + 3)
    result = ckpt("verify", "--path", place, code=1)
    assert f"rank-00001.part, bytes {weight.offset} to {weight.offset + weight.nbytes}: model.weight" in result.stdout
    (seven, nine) = json.loads(ckpt("verify", "--path", place, "--json", code=1).stdout)
    assert (seven["step"], seven["whole"], nine["step"], nine["whole"]) == (7, True, 9, False)
    ckpt("verify", "--path", place, "--step", 7)
    assert "there are 7, 9" in ckpt("verify", "--path", place, "--step", 8, code=2).stderr
    assert "model.weight fails its checksum" in _export(place, "newest", "dcp", place / "out", code=1).stderr
    assert not list(place.glob("*out*"))


def _export(place: Path, step: object, form: str, target: Path, *more: object, code: int = 0) -> Result:
    return ckpt("export", step, "--path", place, "--format", form, "--to", target, *more, code=code)


@pytest.mark.parametrize("file_bytes", [200, 1 << 30])
def test_a_dcp_export_is_loaded_without_holdfast(
    place: Path, tmp_path: Path, file_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "DCP_FILE_BYTES", file_bytes)
    target = tmp_path / "out"
    result = _export(place, 7, "dcp", target)
    assert (len(list(target.glob("*.distcp"))) == 1) == (file_bytes > 200)
    assert "not merged, because PerShard and PerRank state cannot be" in result.stdout
    loaded = {
        "model": {"weight": torch.zeros_like(WEIGHT)}
        | {name: torch.zeros_like(value) for name, value in KINDS.items()},
        "shard/pp=1/stage": {"weight": torch.zeros(3)},
        "tokens": 0,
    }
    dcp.load(loaded, checkpoint_id=target)
    for name, value in {"weight": WEIGHT, **KINDS}.items():
        assert torch.equal(loaded["model"][name], value), name
    assert torch.all(loaded["shard/pp=1/stage"]["weight"] == 2)
    assert loaded["tokens"] == 1234
    dcp_to_torch_save(target, tmp_path / "all.pt")
    everything = torch.load(tmp_path / "all.pt", weights_only=False)
    assert torch.equal(everything["optimizer"]["state"]["0"]["exp_avg"], WEIGHT + 1)
    assert everything["optimizer"]["param_groups"] == [{"lr": 1.0, "betas": (0.9, 0.95)}]
    assert torch.all(everything["rank/1/mine"]["seen"] == 11)


def test_a_safetensors_export_is_read_by_its_library(place: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    result = _export(place, 7, "safetensors", target, "--max-shard-size", "300B")
    assert "omitted, safetensors cannot store it: optimizer.param_groups.0.lr" in result.stdout
    index = json.loads((target / "model.safetensors.index.json").read_bytes())
    tensors: dict[str, torch.Tensor] = {}
    for name in sorted(set(index["weight_map"].values())):
        part = safetensors.torch.load_file(target / name)
        assert {key for key, file in index["weight_map"].items() if file == name} == set(part)
        assert len(part) == 1 or sum(tensor.nbytes for tensor in part.values()) <= 300
        tensors |= part
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in tensors.values())
    for name, value in {"weight": WEIGHT, **KINDS}.items():
        assert torch.equal(tensors[f"model.{name}"], value) and tensors[f"model.{name}"].dtype == value.dtype, name
    assert torch.equal(tensors["optimizer.state.0.exp_avg"], WEIGHT + 1)
    assert torch.all(tensors["shard/pp=0/stage.weight"] == 1)


def test_one_shard_under_plain_names(place: Path, tmp_path: Path) -> None:
    result = _export(place, 7, "safetensors", tmp_path / "out", "--shard", "pp=1", "--only", "stage", "--only", "model")
    assert "omitted: rank/0, rank/1, shard/pp=0" in result.stdout
    tensors = safetensors.torch.load_file(tmp_path / "out" / "model.safetensors")
    assert set(tensors) == {"stage.weight", "model.weight", *(f"model.{name}" for name in KINDS)}
    assert torch.all(tensors["stage.weight"] == 2)


def test_what_was_exported_is_imported_and_restored_by_as_many_ranks(place: Path, tmp_path: Path) -> None:
    _export(place, 9, "dcp", tmp_path / "dcp")
    _export(place, 9, "safetensors", tmp_path / "safetensors", "--max-shard-size", "300B")
    imported = tmp_path / "imported"
    for step, form in ((3, "dcp"), (4, "safetensors")):
        ckpt("import", tmp_path / form, "--path", imported / form, "--step", step)
        ckpt("verify", "--path", imported / form)
    run_ranks("restore", imported)


def test_an_import_replaces_a_step_only_if_told_to(tmp_path: Path) -> None:
    for name in ("one", "other"):
        safetensors.torch.save_file({"w": torch.ones(1)}, tmp_path / f"{name}.safetensors")
    there = ("--path", tmp_path / "checkpoints", "--step", 4)
    ckpt("import", tmp_path / "one.safetensors", *there)
    manifest = tmp_path / "checkpoints/step-00000004/manifest.json"
    before = manifest.read_bytes()
    assert "has step 4 already" in ckpt("import", tmp_path / "other.safetensors", *there, code=1).stderr
    assert manifest.read_bytes() == before
    ckpt("import", tmp_path / "other.safetensors", *there, "--replace")
    assert manifest.read_bytes() != before


def test_what_another_program_wrote_becomes_an_entry(tmp_path: Path) -> None:
    model = torch.nn.Linear(3, 2)
    safetensors.torch.save_file(model.state_dict(), tmp_path / "model.safetensors")
    ckpt("import", tmp_path, "--path", tmp_path / "a", "--step", 1, "--entry", "model")
    dcp.save({"model": model.state_dict()}, checkpoint_id=tmp_path / "dcp")
    ckpt("import", tmp_path / "dcp", "--path", tmp_path / "b", "--step", 1)
    for directory in ("a", "b"):
        other = torch.nn.Linear(3, 2)
        assert Checkpointer(tmp_path / directory).restore({"model": other}) == 1
        assert torch.equal(other.weight, model.weight) and torch.equal(other.bias, model.bias)
    (tmp_path / "empty").mkdir()
    refused = ckpt("import", tmp_path / "empty", "--path", tmp_path / "c", "--step", 1, code=2)
    assert "neither a directory of torch.distributed.checkpoint" in refused.stderr
    assert not (tmp_path / "c").exists()


def test_an_import_that_breaks_off_leaves_nothing(tmp_path: Path) -> None:
    safetensors.torch.save_file({"w": torch.ones(100)}, tmp_path / "model.safetensors")
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-50])
    refused = ckpt("import", tmp_path, "--path", tmp_path / "a", "--step", 1, code=2)
    assert "cannot be read: SafetensorError" in refused.stderr
    assert json.loads(ckpt("ls", "--path", tmp_path / "a", "--json").stdout) == []


def test_a_url_is_as_good_as_a_directory(tmp_path: Path) -> None:
    url = f"memory://{tmp_path.name}/checkpoints"
    model = torch.nn.Linear(3, 2)
    checkpointer = Checkpointer(url, keep=2)
    for step in (1, 2, 3):
        checkpointer.save(step, {"model": model, "step": step})
    other = torch.nn.Linear(3, 2)
    state = {"model": other, "step": 0}
    assert Checkpointer(url).restore(state) == 3
    assert state["step"] == 3 and torch.equal(other.weight, model.weight)
    assert [row["step"] for row in json.loads(ckpt("ls", "--path", url, "--json").stdout)] == [2, 3]
    assert ckpt("verify", "--path", url).stdout.count("whole") == 2
    ckpt("export", "newest", "--path", url, "--to", tmp_path / "out", "--format", "safetensors")
    ckpt("import", tmp_path / "out", "--path", url, "--step", 8)
    assert Checkpointer(url).restore({"model": other}) == 8


@pytest.mark.parametrize("command", ["ls", "verify"])
def test_torch_is_imported_only_where_it_is_needed(place: Path, command: str) -> None:
    program = (
        "import sys\nfrom holdfast.cli.main import main\n"
        "try:\n    main()\nfinally:\n    assert 'torch' not in sys.modules and 'fsspec' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "ckpt", command, "--path", place], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_where_nothing_is_there_are_words(tmp_path: Path) -> None:
    nowhere = ckpt("verify", "--path", tmp_path / "none", code=2)
    assert "is not visible from this machine" in nowhere.stderr
    assert "name a job" in ckpt("verify", code=2).stderr
    both = ckpt("ls", "job", "--path", tmp_path, code=2)
    assert "not both" in both.stderr
    unknown = ckpt("ls", "job", "--dir", tmp_path, code=1)
    assert "no cluster here" in unknown.stderr and "--path" in unknown.stderr
    assert "cannot be kept at 'ftp://x/y'" in ckpt("ls", "--path", "ftp://x/y", code=2).stderr


@pytest.fixture(scope="module")
def urls(embedded_postgres: str) -> dict[str, str]:
    return asyncio.run(new_database(embedded_postgres, "ckpt_commands"))


async def catalogue(url: str, *rows: tuple[str, int, str]) -> None:
    connection = await asyncpg.connect(url)
    for job, step, path in rows:
        await connection.execute(
            "insert into ckpt.steps (key, version, body, job, step, path, bytes, saved_at) "
            "values ($1, 1, '{}', $2, $3, $4, 1000, now())",
            *(f"{job}/{step}", job, step, path),
        )
    await connection.close()


def test_a_job_is_looked_up_on_the_disk_and_in_the_catalogue(urls: dict[str, str], saved: Path, tmp_path: Path) -> None:
    local = tmp_path / "jobs/local/checkpoints"
    shutil.copytree(saved, local)
    asyncio.run(
        catalogue(
            urls["ckpt"],
            ("local", 7, str(local.resolve() / "step-00000007")),
            (
                "local",
                5,
                str(local.resolve() / "step-00000005"),
            ),  # dropped since: the catalogue keeps more than the disk
            ("away", 30, "/not/on/this/machine/step-00000030"),
            ("elsewhere", 9, str(saved / "step-00000009")),
        )
    )
    here = ("--dir", tmp_path, "--database-url", urls["reader"])

    def steps(*arguments: object) -> list[tuple[Any, ...]]:
        rows = json.loads(ckpt("ls", *arguments, *here, "--json").stdout)
        return [(row["job"], row["step"], row["state"]) for row in rows]

    assert steps("local") == [("local", 7, "complete"), ("local", 9, "complete")]
    assert steps("away") == [("away", 30, "elsewhere")]
    assert len(steps()) == 5 and {job for job, _, _ in steps()} == {"local", "away", "elsewhere"}
    assert "whole" in ckpt("verify", "elsewhere", *here, "--step", 9).stdout
    assert "is not visible from this machine" in ckpt("verify", "away", *here, code=2).stderr
    safetensors.torch.save_file({"w": torch.ones(2)}, tmp_path / "m.safetensors")
    ckpt("import", tmp_path / "m.safetensors", "fresh", *here, "--step", 2)
    assert steps("fresh") == [("fresh", 2, "complete")]


async def finished(url: str, *rows: tuple[str, str]) -> None:
    """Record that jobs have saved a step at these paths; the catalogue has forgotten them since."""
    connection = await asyncpg.connect(url)
    is_missing = "to_regclass('historian.events_default') is null"
    await connection.execute(f"select historian.add_default_partition() where {is_missing}")
    for job, path in rows:
        await connection.execute(
            "insert into historian.events (id, at, class, type, source, job, body) "
            "values ($1, now(), 'action', 'checkpoint_saved', 'agent/n', $2, $3)",
            uuid7(),
            job,
            json.dumps({"path": path}),
        )
    await connection.close()


def test_a_finished_job_is_found_in_a_directory_of_its_own(urls: dict[str, str], saved: Path, tmp_path: Path) -> None:
    own, default = (tmp_path / name for name in ("own/checkpoints", "jobs/both/checkpoints"))
    shutil.copytree(saved, own)
    shutil.copytree(saved, default)
    record = finished(
        urls["historian"],
        ("done", f"{own}/step-00000005"),
        ("done", f"{own}/generation-1.done.1/vault-step-00000009"),
        ("both", f"{default.resolve()}/step-00000009"),
        ("gone", "/not/here/any/more/step-00000030"),
    )
    asyncio.run(record)
    here = ("--dir", tmp_path, "--database-url", urls["reader"])

    def steps(*arguments: object) -> list[tuple[Any, ...]]:
        return [(row["job"], row["step"]) for row in json.loads(ckpt("ls", *arguments, *here, "--json").stdout)]

    assert steps("done") == [("done", 7), ("done", 9)] and steps("gone") == []
    assert {("done", 7), ("done", 9), ("both", 7), ("both", 9)} <= {*steps()} and len(steps("both")) == 2
    assert "whole" in ckpt("verify", "done", *here, "--step", 9).stdout


def test_an_older_job_of_the_same_name_changes_no_command(urls: dict[str, str], saved: Path, tmp_path: Path) -> None:
    old, older, new = (tmp_path / name / "checkpoints" for name in ("run8", "run7", "run9"))
    for place in (old, older, new):
        shutil.copytree(saved, place)
    for place in (older, new):
        flip(place / "step-00000009/rank-00000.part", 40)
    jobs = ("train", "ended")
    steps = [(job, f"{place}/step-00000009") for place in (older, old) for job in jobs]
    asyncio.run(finished(urls["historian"], *steps))
    asyncio.run(catalogue(urls["ckpt"], ("train", 9, f"{new}/step-00000009")))
    here = ("--dir", tmp_path, "--database-url", urls["reader"])

    ckpt("verify", "train", *here, "--step", 9, code=1)
    ckpt("verify", "ended", *here, "--step", 9)  # where it saved last
    assert len(json.loads(ckpt("ls", "train", *here, "--json").stdout)) == 6
    safetensors.torch.save_file({"w": torch.ones(2)}, tmp_path / "m.safetensors")
    ckpt("import", tmp_path / "m.safetensors", "ended", *here, "--step", 2)
    assert (tmp_path / "jobs/ended/checkpoints/step-00000002").is_dir()
    assert not [*tmp_path.glob("run*/checkpoints/step-00000002")]


def test_the_catalogue_is_read_although_the_record_is_not(
    urls: dict[str, str], saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(catalogue(urls["ckpt"], ("read", 9, f"{saved}/step-00000009")))
    monkeypatch.setattr(ckpt_locations, "_SAVED", "select pg_sleep(60), $1::text, $2::int")
    monkeypatch.setattr(database, "STATEMENT_TIMEOUT_S", 1)
    listed = ckpt("ls", "read", "--dir", tmp_path, "--database-url", urls["reader"], "--json")
    assert [row["step"] for row in json.loads(listed.stdout)] == [7, 9]
    assert "the directories of jobs that have ended cannot be read" in listed.stderr
