"""A scoreboard as a picture (SVG): ETTR over time and the causes of lost time, a row for each policy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from xml.sax.saxutils import escape

from holdfast.policy_scores import CurvePoint, PolicyScore, Scoreboard

WIDTH, HEAD, ROW, FOOT = 1080, 64, 118, 56
NAME_X, CURVE_X, BAR_X = 20, 200, 690
CURVE_W, BAR_W, PLOT_H = 440, 360, 84
COLOURS = {
    "redone": "#8c6bb1",
    "slow": "#e6ab02",
    "spoiled": "#a6761d",
    "unnoticed": "#e7298a",
    "checks": "#1b9e77",
    "replay": "#66a61e",
    "waiting_for_machines": "#7570b3",
    "pause": "#bdbdbd",
    "starting": "#377eb8",
    "ended": "#444444",
}
OTHER = "#999999"
SHOWN_FROM = 0.004
"""Share of the lost time below which a cause is not drawn."""


def picture(board: Scoreboard) -> str:
    """Return the SVG text."""
    height = HEAD + ROW * len(board.scores) + FOOT
    causes = list(dict.fromkeys(cause for score in board.scores for cause in _shown(score)))
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
        f'viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12" fill="#222">',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
        _text(NAME_X, 24, f"{board.scenario}: {board.title}", size=15, weight="bold"),
        _text(
            CURVE_X, 50, f"ETTR in {board.days:g} days, seed {board.seeds[0]}: line since the start, area of one hour"
        ),
        _text(BAR_X, 50, "lost time by cause, share of the lost time"),
    ]
    for number, score in enumerate(board.scores):
        parts += _row(score, HEAD + ROW * number, board.days)
    parts += _legend(causes, HEAD + ROW * len(board.scores) + 22)
    return "\n".join([*parts, "</svg>\n"])


def _row(score: PolicyScore, top: int, days: float) -> Iterator[str]:
    ettr = score.ettr
    spread = f" ± {(ettr.high - ettr.low) / 2:.4f}" if ettr.low is not None and ettr.high is not None else ""
    yield _text(NAME_X, top + 26, score.policy, size=14, weight="bold")
    yield _text(NAME_X, top + 46, f"ETTR {ettr.mean:.4f}{spread}")
    yield _text(NAME_X, top + 63, f"evicted {score.evictions}, wrongly {score.wrong_evictions}")
    yield _text(NAME_X, top + 80, f"missed {score.missed_culprits}, given up {score.ended_jobs}")
    yield from _curves(score.curve, top + 8, days)
    yield from _bar(score, top + 8)


def _curves(curve: Sequence[CurvePoint], top: int, days: float) -> Iterator[str]:
    bottom = top + PLOT_H
    for share in (0.0, 0.5, 1.0):
        y = bottom - share * PLOT_H
        yield f'<line x1="{CURVE_X}" x2="{CURVE_X + CURVE_W}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
        yield _text(CURVE_X - 6, y + 4, f"{share:.0%}", anchor="end", size=10)
    if not curve:
        return
    x_of = [CURVE_X + CURVE_W * min(1.0, point.at_h / (24.0 * days)) for point in curve]
    hours = [f"{x:.1f},{bottom - PLOT_H * point.last_hour:.1f}" for x, point in zip(x_of, curve, strict=True)]
    area = " ".join([f"{x_of[0]:.1f},{bottom}", *hours, f"{x_of[-1]:.1f},{bottom}"])
    yield f'<polygon points="{area}" fill="#9ecae1"/>'
    line = " ".join(f"{x:.1f},{bottom - PLOT_H * it.cumulative:.1f}" for x, it in zip(x_of, curve, strict=True))
    yield f'<polyline points="{line}" fill="none" stroke="#08306b" stroke-width="1.8"/>'
    yield _text(CURVE_X + CURVE_W, bottom + 13, f"{days:g} d", anchor="end", size=10)


def _bar(score: PolicyScore, top: int) -> Iterator[str]:
    causes = _shown(score)
    total_s, x = sum(causes.values()), float(BAR_X)
    yield _text(BAR_X, top + 72, f"{score.lost_s.mean:,.0f} s lost a day, {score.regret_s.mean:,.0f} s of it regret")
    for cause, lost_s in causes.items():
        width = BAR_W * lost_s / total_s
        colour = COLOURS.get(cause, OTHER)
        yield f'<rect x="{x:.1f}" y="{top + 14}" width="{width:.1f}" height="38" fill="{colour}"/>'
        x += width


def _shown(score: PolicyScore) -> dict[str, float]:
    total_s = sum(score.lost_by_cause_s.values())
    return {cause: lost_s for cause, lost_s in score.lost_by_cause_s.items() if lost_s > SHOWN_FROM * total_s}


def _legend(causes: Sequence[str], top: int) -> Iterator[str]:
    x = float(NAME_X)
    for cause in causes:
        label = cause.replace("_", " ")
        yield f'<rect x="{x:.0f}" y="{top}" width="12" height="12" fill="{COLOURS.get(cause, OTHER)}"/>'
        yield _text(x + 17, top + 11, label)
        x += 34 + 7.2 * len(label)


def _text(x: float, y: float, text: str, size: int = 12, weight: str = "normal", anchor: str = "start") -> str:
    return (
        f'<text x="{x:.0f}" y="{y:.0f}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}">'
        f"{escape(text)}</text>"
    )
