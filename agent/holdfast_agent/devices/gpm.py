"""NVML's GPM metrics (Hopper and later): rates between two samples of a GPU, which this process keeps."""

from __future__ import annotations

from typing import Any, Final

MEBIBYTE: Final = 1 << 20


class GpmSampler:
    """The newest sample of each GPU, by its handle's number. A GPU without GPM is not asked again."""

    def __init__(self, nvml: Any) -> None:
        self._nvml = nvml
        self._samples: dict[int, Any] = {}
        self._without: set[int] = set()

    def rates(self, index: int, handle: Any) -> dict[str, float]:
        """Return the rates since the sample before; none with the first one. Raises NVMLError if the GPU is lost."""
        if index in self._without:
            return {}
        try:
            if index not in self._samples and not self._nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
                self._without.add(index)
                return {}
            return self._since_sample(index, handle)
        except AttributeError:
            # The binding is older than GPM.
            self._without.add(index)
        except self._nvml.NVMLError as error:
            if error.value in (self._nvml.NVML_ERROR_GPU_IS_LOST, self._nvml.NVML_ERROR_RESET_REQUIRED):
                raise
            self._without.add(index)
        return {}

    def _since_sample(self, index: int, handle: Any) -> dict[str, float]:
        nvml = self._nvml
        now = nvml.nvmlGpmSampleAlloc()
        try:
            nvml.nvmlGpmSampleGet(handle, now)
        except nvml.NVMLError:
            nvml.nvmlGpmSampleFree(now)
            raise
        before, self._samples[index] = self._samples.get(index), now
        if before is None:
            return {}
        try:
            return self._between(before, now)
        finally:
            nvml.nvmlGpmSampleFree(before)

    def _between(self, before: Any, now: Any) -> dict[str, float]:
        nvml = self._nvml
        ids = (
            nvml.NVML_GPM_METRIC_GRAPHICS_UTIL,
            nvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
            nvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC,
            nvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC,
            nvml.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC,
            nvml.NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC,
        )
        wanted = nvml.c_nvmlGpmMetricsGet_t()
        wanted.version = nvml.NVML_GPM_METRICS_GET_VERSION
        wanted.numMetrics = len(ids)
        wanted.sample1, wanted.sample2 = before, now
        for place, metric in enumerate(ids):
            wanted.metrics[place].metricId = metric
        nvml.nvmlGpmMetricsGet(wanted)
        found = [
            wanted.metrics[place].value if wanted.metrics[place].nvmlReturn == nvml.NVML_SUCCESS else None
            for place in range(len(ids))
        ]
        busy, tensor, pcie_sent, pcie_received, sent, received = found
        pcie = None if pcie_sent is None or pcie_received is None else pcie_sent + pcie_received
        rates = {
            "busy_share": _times(busy, 0.01),
            "tensor_share": _times(tensor, 0.01),
            "pcie_bytes_per_s": _times(pcie, MEBIBYTE),
            "link_sent_bytes_per_s": _times(sent, MEBIBYTE),
            "link_received_bytes_per_s": _times(received, MEBIBYTE),
        }
        return {name: rate for name, rate in rates.items() if rate is not None}


def _times(value: float | None, unit: float) -> float | None:
    """Return None for what is no measurement: GPM's percentages and rates are never negative."""
    return value * unit if value is not None and value >= 0 else None
