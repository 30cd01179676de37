"""Readers of /proc and control groups: free memory of this machine, mounts, waits for processors."""
