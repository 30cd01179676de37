"""Stop-time checks of a node, run as ranks of a generation (ByteRobust §4.2): `python -m holdfast_checks`."""
