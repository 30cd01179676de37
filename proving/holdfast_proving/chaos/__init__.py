"""Chaos of messages and processes: delays, repetitions, crashes, and what a disk loses."""
