"""What /proc and control groups show of this machine: memory that is left, mounts, waits for processors."""
