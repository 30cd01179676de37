"""What `holdfast run`, `update` and `rollback` ask for where code is concerned."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from holdfast.bus import Bus
from holdfast.bus.in_memory import MemoryBroker, MemoryBus
from holdfast.cli import code_upload
from holdfast.cli.code_upload import upload
from holdfast.cli.main import main
from holdfast.code.manifest import encode
from holdfast.code.snapshot import Snapshot, SnapshotLimits, snapshot
from holdfast.events.parts.job import JobSpec
from holdfast.requests import Answer, KeepCode, Request
from holdfast.subjects import CODE_BUCKET


class Asked(list[tuple[JobSpec, Snapshot | None]]):
    """The jobs that `holdfast run` asked for, of a script in a directory of its own."""

    def __init__(self, root: Path) -> None:
        self.script = root / "source" / "train.py"
        self.script.parent.mkdir()
        self.script.write_text("import os\n")
        self._root = root

    def run(self, *options: str) -> Result:
        addresses = ["--nats-url", "nats://127.0.0.1", "--database-url", "postgresql://127.0.0.1"]
        return CliRunner().invoke(main, ["run", "--dir", str(self._root), *addresses, *options, str(self.script)])


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Asked:
    jobs = Asked(tmp_path)

    async def follow(spec: JobSpec, nats_url: str, database_url: str, *, detach: bool, code: Snapshot | None) -> int:
        jobs.append((spec, code))
        return 0

    monkeypatch.setattr("holdfast.cli.commands.jobs.run.follow", follow)
    return jobs


def test_the_code_of_a_script_is_kept_unless_that_is_not_wanted(asked: Asked) -> None:
    root = asked.script.parent
    (root / ".env").write_text("TOKEN=1")
    assert asked.run().output == "" and asked.run("--code", str(root)).exit_code == 0
    for spec, found in asked:
        assert (spec.code_root, spec.script, spec.code_outside) == (str(root), str(asked.script), (".env",))
        assert found is not None and [entry.path for entry in found.manifest.entries] == ["train.py"]
    assert asked.run("--code", "none").output == ""
    assert (asked[-1][0].code_root, asked[-1][1]) == ("", None)


@pytest.fixture
def umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
def test_a_closed_file_is_named_where_it_makes_a_difference_that_it_is_in_no_version(asked: Asked) -> None:
    """A script reads it where it lies, as it would any other file that is not code: an edit counts at once."""
    root = asked.script.parent
    for name in ("token.txt", "settings.yaml"):
        (root / name).touch(0o600)
    assert asked.run().output.endswith("read where it lies: settings.yaml (closed to other users)\n")
    (root / "settings.yaml").unlink()
    assert asked.run().output == ""
    assert "token.txt (closed to other users)" in asked.run("--code", str(root)).output


def test_what_is_too_large_to_be_kept_unasked_runs_where_it_lies_and_says_so(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code_upload, "FOUND_TREE_LIMITS", SnapshotLimits(1, 100, 100))
    (asked.script.parent / "more.py").touch()
    said = asked.run()
    assert said.exit_code == 0 and "runs where it lies" in said.output and "more than 1 files" in said.output
    assert asked[-1] == (asked[-1][0], None) and not asked[-1][0].code_root
    # Who names it gets it.
    assert asked.run("--code", str(asked.script.parent)).output == "" and asked[-1][1] is not None


def test_code_that_cannot_be_what_is_meant_is_refused(asked: Asked, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    said = asked.run("--code", str(tmp_path / "other"))
    assert said.exit_code == 1 and "train.py is not below it" in said.output
    assert asked.run("--code", str(tmp_path / "nowhere")).exit_code == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--within", "5x"], "is not a duration: give one such as 500ms, 30s, 5m, 24h or 2d"),
        (["--within", "9999d"], "too long: 365d at most"),
        (["--urgent", "--lazy"], "choose --urgent or --lazy"),
        ([], "it has no code files"),
    ],
)
def test_an_update_that_makes_no_sense_is_refused(tmp_path: Path, options: list[str], message: str) -> None:
    (tmp_path / "empty").mkdir()
    said = CliRunner().invoke(main, ["update", "job", "--from", str(tmp_path / "empty"), *options])
    assert said.exit_code in (1, 2) and message in said.output


async def test_only_what_the_controller_lacks_is_sent_and_all_of_it_if_that_was_not_enough(
    asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    (asked.script.parent / "model.py").write_text("LAYERS = 4\n")
    found = snapshot(asked.script.parent)
    bus = MemoryBroker().client("run")
    one = next(iter(found.contents))
    refusals = [
        Answer(accepted=False, message="not held"),
        Answer(accepted=False, message="1 file is missing", lacking=(one, "f" * 64)),
        Answer(accepted=False, message="a file is not whole"),
    ]
    sent: list[set[str]] = []

    async def ask(bus: Bus, subject: str, request: Request, service: str) -> Answer:
        assert isinstance(request, KeepCode) and request.version == found.version
        return refusals.pop(0) if refusals else Answer(accepted=True)

    async def put_objects(self: MemoryBus, bucket: str, objects: dict[str, bytes]) -> None:
        if objects:
            sent.append(set(objects))
        self.broker.objects[bucket].update(objects)

    monkeypatch.setattr(code_upload, "ask", ask)
    monkeypatch.setattr(MemoryBus, "put_objects", put_objects)
    offer = await upload(bus, found, "a fix")
    assert (offer.version, offer.message, offer.files) == (found.version, "a fix", 2)
    manifest = {found.version}
    assert sent == [manifest, {one}, manifest, set(found.contents), manifest]
    assert bus.broker.objects[CODE_BUCKET][found.version] == encode(found.manifest)
    sent.clear()
    await upload(bus, found)
    assert not sent, "what is held already is not sent again"
