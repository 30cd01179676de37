"""Processes that a zygote starts beside its ranks: the stores of generations, and the tests of a warm-up."""
