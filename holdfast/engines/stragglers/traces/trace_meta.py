"""The meta file of a trace: the sizes of its job, in JSON or flat YAML (`dp_size: 4`). Pure."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec

from holdfast.engines.stragglers.traces.trace_files import OperationsUnreadable

_LINE = re.compile(r"^\s*([a-z_]+)\s*:\s*['\"]?(\d+)['\"]?\s*(?:#.*)?$", re.MULTILINE)


Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 24)]


class TraceMeta(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of a job; 0: not given, inferred from the rows."""

    dp_size: Size = 0
    pp_size: Size = 0
    tp_size: Size = 0
    dsp_size: Size = 1
    world_size: Size = 0


def read_meta(data: bytes) -> TraceMeta:
    """Return the sizes in a meta file. Raises OperationsUnreadable if it has none."""
    try:
        if data.lstrip().startswith(b"{"):
            return msgspec.json.decode(data, type=TraceMeta, strict=False)
        sizes = {key: int(number) for key, number in _LINE.findall(data.decode("utf-8", "replace"))}
        known = {key: number for key, number in sizes.items() if key in TraceMeta.__struct_fields__}
        if not known:
            raise OperationsUnreadable("the meta file names no size of the job: it should have lines like `dp_size: 4`")
        return msgspec.convert(known, TraceMeta)
    except msgspec.MsgspecError as error:
        raise OperationsUnreadable(f"the meta file: {error}") from error
