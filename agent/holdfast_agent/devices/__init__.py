"""Libraries of devices, each asked in a separate process, and the activity of devices that they measure."""
