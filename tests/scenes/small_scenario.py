"""The TOML text of a small scenario for the proving ground; tests add faults to it."""

SMALL = """
title = "small"
days = 10
machines = [{ name = "gpu", count = 8, per_rack = 4 }]
jobs = [{ name = "train", nodes = 4 }]
"""
