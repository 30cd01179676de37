"""The processors and the memory that are near a device."""
