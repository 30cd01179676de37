"""The simulated world: time, machines, jobs, and the effects that faults have on them."""
