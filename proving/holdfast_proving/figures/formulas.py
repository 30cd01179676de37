"""Figures that are arithmetic: ByteRobust's Table 8 with our blocking times, and FT-HSDP's section 6.1."""

from __future__ import annotations

from holdfast_proving.figures.row import Figure, Row

MEGATRON_BLOCKED_S, MEGATRON_MFU = 6.77, 39.84
"""70B on 128x16 GPUs: from these follows the paper's time of a step."""
OURS_BLOCKED_S = 0.00184
"""The call that saves 500 MB, about a rank's part of 0.48 GB; quiet machine (docs/benchmarks.md)."""
MTBF_MIN, SYNC_STALL_MIN, FT_STALL_MIN, REPLICAS = 18.0, 10.0, 3.0, 12
FIRST_STEP_S, NCCL_S = 200.0, 200.0
"""Of 98K GPUs (FT-HSDP, Fig. 2 and section 3)."""
RESTART_S = 1.0
"""From a killed rank to running ranks, measured with 2 to 8 ranks: 0.11 to 0.23 s; a second is generous."""


def mfu(step_s: float, blocked_s: float) -> float:
    """Return the share of the MFU that is left if each step is blocked for this long, in percent."""
    return 100.0 * step_s / (step_s + blocked_s)


def table_8() -> Figure:
    share = MEGATRON_MFU / 100.0
    step_s = MEGATRON_BLOCKED_S * share / (1.0 - share)
    rows = (
        Row(what="Megatron save, 6.77 s", ours=mfu(step_s, MEGATRON_BLOCKED_S), paper=39.84, unit="%", made="formula"),
        Row(what="Memory save, 1.84 s", ours=mfu(step_s, 1.84), paper=70.05, unit="%", made="formula"),
        Row(what="ByteRobust save, 0.04 s", ours=mfu(step_s, 0.04), paper=99.23, unit="%", made="formula"),
        Row(what="Holdfast, 0.0018 s", ours=mfu(step_s, OURS_BLOCKED_S), paper=99.23, unit="%", made="formula"),
    )
    return Figure(
        title="ByteRobust, Table 8: MFU left with a checkpoint at each step, 70B on 128x16 GPUs",
        rows=rows,
        inputs=f"MFU = step / (step + blocked), and a step of {step_s:.2f} s from Megatron's row. Holdfast's time is "
        "that of the call with 500 MB from CPU memory; no GPU was attached.",
        why="The formula leaves out what copying takes from the training beside it; measured on a quiet machine that "
        "was 0.02 % ± 0.83 (docs/benchmarks.md).",
    )


def ft_hsdp() -> Figure:
    lost_share = FT_STALL_MIN / MTBF_MIN + (SYNC_STALL_MIN - FT_STALL_MIN) / MTBF_MIN / REPLICAS
    restart_min = (RESTART_S + NCCL_S + FIRST_STEP_S) / 60.0
    rows = (
        Row(
            what="synchronous, 10 minutes every 18",
            ours=100.0 * (1.0 - SYNC_STALL_MIN / MTBF_MIN),
            paper=44.0,
            unit="%",
            digits=1,
            made="formula",
        ),
        Row(
            what="FT-HSDP, 3 minutes and 7 with 11 of 12 replicas",
            ours=100.0 * (1.0 - lost_share),
            paper=80.0,
            unit="%",
            digits=1,
            made="formula",
        ),
        Row(
            what="synchronous, Holdfast's restart in place",
            ours=100.0 * (1.0 - restart_min / MTBF_MIN),
            paper=None,
            unit="%",
            digits=1,
            made="formula",
        ),
    )
    return Figure(
        title="FT-HSDP, section 6.1: effective training time of 98K GPUs",
        rows=rows,
        inputs="A failure every 18 minutes. The last row has what a warm restart cannot save: 200 s of NCCL and 200 s "
        "of the first step.",
        why="Holdfast has no mode in which replicas train on without one: the second row is the paper's arithmetic.",
    )
