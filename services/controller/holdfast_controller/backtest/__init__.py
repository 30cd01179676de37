"""Backtest: recorded evidence through the planner under other settings. `holdfast whatif` runs it as a process of its
own; it reads the record and changes nothing.
"""
