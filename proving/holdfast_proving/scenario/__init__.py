"""Scenarios: machines, jobs and faults, as data."""
