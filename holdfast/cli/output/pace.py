"""The pace of a job as text."""

from __future__ import annotations

_UNITS = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


def pace_text(step_s: float | None, tokens_per_s: float | None, mfu: float | None) -> str | None:
    """Return, for example, `0.163 s/step, 1.2M tokens/s, MFU 41.2 %`; None if nothing is known."""
    parts = [] if step_s is None else [f"{step_s:.3g} s/step"]
    if tokens_per_s is not None:
        parts.append(f"{_short(tokens_per_s)} tokens/s")
    if mfu is not None:
        parts.append(f"MFU {100 * mfu:.1f} %")
    return ", ".join(parts) or None


def _short(number: float) -> str:
    for unit, letter in _UNITS:
        if number >= unit:
            return f"{number / unit:.3g}{letter}"
    return f"{number:.3g}"
