"""Xids of the NVIDIA driver: numbers in its kernel lines that identify a GPU's error."""

from holdfast.engines.hardware.xid.xid_meanings import Xid, catalogue, explained

__all__ = ["Xid", "catalogue", "explained"]
