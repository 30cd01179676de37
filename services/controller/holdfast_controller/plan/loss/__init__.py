"""Losses of a job, actual or possible: steps, the nodes that alone hold them, generations that a database forgot."""
