"""Libraries of devices, each asked in a process of its own, and the activity of devices that they measure."""
