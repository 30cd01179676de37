"""Contexts on accelerators that are made ahead: what ranks report for them, and the process that waits with one."""
