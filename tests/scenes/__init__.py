"""Scenes that tests share: a node, a job that hangs, recorded stacks and traces, played without processes."""
