"""`make demo` begins anew each time; what it may remove for that."""

from pathlib import Path

import pytest

from examples.demo import Demo


@pytest.mark.parametrize("name", ["thesis.tex", "cluster.json"])
def test_what_no_demo_has_made_is_left_alone(tmp_path: Path, name: str) -> None:
    thesis = tmp_path / name
    thesis.write_text("the only copy")
    with pytest.raises(SystemExit, match="holds something else"):
        Demo(tmp_path, 400, keep=False).run()
    assert thesis.read_text() == "the only copy"


def test_an_empty_one_is_taken_and_that_of_a_demo_is_emptied(tmp_path: Path) -> None:
    demo = Demo(tmp_path, 400, keep=False)
    demo.make_room()
    assert tmp_path.is_dir()
    (tmp_path / "cluster.json").write_text("{}")
    demo.sign()
    demo.make_room()
    assert not tmp_path.exists()
    demo.sign()
    assert not tmp_path.exists(), "nothing came of it, so there is nothing to sign"
