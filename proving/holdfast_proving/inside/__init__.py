"""The production code in the simulated world: its shell, its services, their bus and their time."""
