"""Processors and memory near a device."""
