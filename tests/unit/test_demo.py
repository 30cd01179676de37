"""`make demo` begins anew each time; what it may remove for that."""

from pathlib import Path

import pytest

from examples.demo import Demo


def test_a_directory_without_a_cluster_is_left_alone(tmp_path: Path) -> None:
    thesis = tmp_path / "thesis.tex"
    thesis.write_text("the only copy")
    with pytest.raises(SystemExit, match="holds something else"):
        Demo(tmp_path, 400, keep=False).run()
    assert thesis.read_text() == "the only copy"


def test_an_empty_one_is_taken_and_that_of_a_cluster_is_emptied(tmp_path: Path) -> None:
    demo = Demo(tmp_path, 400, keep=False)
    demo.make_room()
    assert tmp_path.is_dir()
    (tmp_path / "cluster.json").write_text("{}")
    demo.make_room()
    assert not tmp_path.exists()
