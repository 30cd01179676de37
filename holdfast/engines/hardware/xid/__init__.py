"""The Xids of the NVIDIA driver: the number in its kernel lines that says what went wrong with a GPU."""

from holdfast.engines.hardware.xid.catalogue import Xid, catalogue, explained

__all__ = ["Xid", "catalogue", "explained"]
