"""Peak rate of accelerators by name: dense BF16 (FP16 without BF16) in FLOP/s. Pure.

From the makers' data sheets, without sparsity. The first of these words that a device's name contains counts.
"""

from __future__ import annotations

PEAK_FLOPS: tuple[tuple[str, float], ...] = (
    ("GB300", 2.5e15),
    ("GB200", 2.5e15),
    ("B300", 2.25e15),
    ("B200", 2.25e15),
    ("H200", 989e12),
    ("H20", 148e12),
    ("GH200", 989e12),
    ("H100 PCIe", 756e12),
    ("H100 NVL", 835e12),
    ("H100", 989e12),
    ("H800 PCIe", 756e12),
    ("H800", 989e12),
    ("A100", 312e12),
    ("A800", 312e12),
    ("A30", 165e12),
    ("A40", 149.7e12),
    ("A10G", 70e12),
    ("A10", 125e12),
    ("L40S", 362e12),
    ("L40", 181e12),
    ("L4", 121e12),
    ("V100", 125e12),
    ("T4", 65e12),
    ("RTX 4090", 165.2e12),
    ("RTX 3090", 71e12),
    ("MI355X", 2.5e15),
    ("MI325X", 1307e12),
    ("MI300X", 1307e12),
    ("MI250X", 383e12),
    ("MI250", 362e12),
)


def peak_flops(device: str) -> float | None:
    """Return the peak of a device by its driver's name; None if unknown."""
    words = device.upper()
    return next((peak for name, peak in PEAK_FLOPS if name.upper() in words), None)
