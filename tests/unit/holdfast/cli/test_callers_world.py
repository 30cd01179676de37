"""What of the caller's environment and Python a job gets."""

from __future__ import annotations

import sys
from pathlib import Path

import click
import pytest

from holdfast.cli.callers_world import INHERITED_BYTES_MAX, callers_python, ranks_environment

HERE = {
    "WANDB_API_KEY": "key",
    "NCCL_DEBUG": "WARN",
    "LD_LIBRARY_PATH": "/opt/cuda",
    "HYDRA_FULL_ERROR": "1",
    "XDG_CACHE_HOME": "/cache",
    # Of this host, this session, a scheduler, the launcher, a cluster.
    "HOME": "/home/me",
    "TMPDIR": "/scratch/here",
    "SSH_AUTH_SOCK": "/run/agent",
    "SLURM_PROCID": "0",
    "OMPI_COMM_WORLD_RANK": "0",
    "RANK": "3",
    "TORCHELASTIC_MAX_RESTARTS": "9",
    "HOLDFAST_DATABASE_URL": "postgresql://me:password@db",
    "BASH_FUNC_module%%": "() { :; }",
    "LATIN": "\udce4",
}


def test_ranks_get_what_does_not_belong_to_this_host_session_launcher_or_cluster() -> None:
    assert ranks_environment((), (), HERE, none=False) == {
        "WANDB_API_KEY": "key",
        "NCCL_DEBUG": "WARN",
        "LD_LIBRARY_PATH": "/opt/cuda",
        "HYDRA_FULL_ERROR": "1",
        "XDG_CACHE_HOME": "/cache",
    }
    assert ranks_environment((), (), HERE, none=True) == {}
    assert ranks_environment(("TMPDIR", "A=1"), (), HERE, none=True) == {"TMPDIR": "/scratch/here", "A": "1"}


def test_a_file_goes_before_the_environment_and_the_command_line_before_both(tmp_path: Path) -> None:
    (tmp_path / "env").write_text("# no entry\n\nNCCL_DEBUG=INFO\nexport A = 'x y'\nB=\"\"\nTMPDIR\nC=it's\n")
    found = ranks_environment(("A=option",), (tmp_path / "env",), HERE, none=False)
    assert found == ranks_environment((), (), HERE, none=False) | {
        "NCCL_DEBUG": "INFO",
        "A": "option",
        "B": "",
        "TMPDIR": "/scratch/here",
        "C": "it's",
    }


@pytest.mark.parametrize("line", ["=secret", "MY KEY=secret", "RANK=secret"])
def test_an_entry_that_is_refused_does_not_show_its_value(tmp_path: Path, line: str) -> None:
    (tmp_path / "env").write_text(line)
    with pytest.raises(click.ClickException) as refused:
        ranks_environment((), (tmp_path / "env",), HERE, none=False)
    assert "--env-file" in refused.value.message and "secret" not in refused.value.message


def test_of_a_large_environment_the_largest_values_are_left_out_and_named(capsys: pytest.CaptureFixture[str]) -> None:
    large = {"HUGE": "x" * INHERITED_BYTES_MAX, "LARGE": "x" * (INHERITED_BYTES_MAX // 2), "SMALL": "1"}
    assert ranks_environment((), (), large, none=False).keys() == {"SMALL", "LARGE"}
    assert "64 KiB: HUGE. Name those" in capsys.readouterr().err
    assert ranks_environment(("HUGE",), (), large, none=False).keys() == {"HUGE", "SMALL", "LARGE"}


def test_the_python_is_the_named_one_the_active_environments_or_that_of_the_command(tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    assert callers_python(None, {}) == sys.executable
    assert callers_python(None, {"VIRTUAL_ENV": str(tmp_path)}) == str(python)
    assert callers_python(None, {"VIRTUAL_ENV": str(tmp_path / "gone")}) == sys.executable
    assert callers_python(None, {"VIRTUAL_ENV": sys.prefix}) == sys.executable
    assert callers_python(None, {"VIRTUAL_ENV": str(tmp_path), "PYTHON_EXEC": "/opt/python"}) == "/opt/python"
    assert callers_python("/usr/bin/python3", {"PYTHON_EXEC": "/opt/python"}) == "/usr/bin/python3"
    assert callers_python(str(python), {}) == str(python)
    assert callers_python("node", {"VIRTUAL_ENV": str(tmp_path)}) == ""
