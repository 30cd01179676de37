"""The docstrings under the fields of structs, which Python itself does not keep."""

from __future__ import annotations

import ast
import inspect
import textwrap
from itertools import pairwise

import msgspec


def field_docs(kind: type[msgspec.Struct]) -> dict[str, str]:
    """Return the docstring under each field of a struct and of its bases."""
    docs: dict[str, str] = {}
    for cls in reversed(kind.__mro__[: kind.__mro__.index(msgspec.Struct)]):
        body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
        assert isinstance(body, ast.ClassDef)
        for field, below in pairwise(body.body):
            if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(field.target, ast.Name):
                docs[field.target.id] = " ".join(str(ast.literal_eval(below.value)).split())
    return docs
