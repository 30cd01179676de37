"""Processes made ahead of the ranks that they become."""
