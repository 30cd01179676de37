"""Finds the migrations and hashes them, without the libraries that run them."""

from __future__ import annotations

import hashlib
from pathlib import Path

import holdfast


class MigrationsMissing(Exception):
    """The installation lacks the migrations."""


def migrations_directory() -> Path:
    """Return the folder of the migrations: inside the installed package, or beside it in a checkout.

    Raises MigrationsMissing if they are in neither place.
    """
    package = Path(holdfast.__file__).parent
    for directory in (package / "migrations", package.parent / "migrations"):
        if (directory / "env.py").is_file():
            return directory
    raise MigrationsMissing("the migrations are not in this installation of holdfast: install it again")


def migrations_digest() -> str:
    """Return a hash of all that decides what a database looks like after its migration."""
    directory = migrations_directory()
    found = hashlib.sha256()
    for file in sorted((*directory.glob("*.py"), *directory.glob("versions/*.py"), directory / "views.sql")):
        found.update(f"{file.relative_to(directory)}\0".encode())
        found.update(hashlib.sha256(file.read_bytes()).digest())
    return found.hexdigest()
