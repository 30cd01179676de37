"""A small package installed into a folder on `sys.path`, with entry points, as `pip install --target` leaves it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def install(folder: Path, name: str, source: str, entry_points: Mapping[str, Mapping[str, str]]) -> None:
    """Write module `name` and its metadata; `entry_points` is {group: {entry point name: function name}}."""
    (folder / f"{name}.py").write_text(source)
    metadata = folder / f"{name}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    groups = (
        "\n".join([f"[{group}]", *(f"{point} = {name}:{function}" for point, function in points.items())])
        for group, points in entry_points.items()
    )
    (metadata / "entry_points.txt").write_text("\n\n".join(groups) + "\n")
