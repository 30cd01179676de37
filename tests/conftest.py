"""Options shared by all tests."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="Rewrite golden traces to what the code decides now.")
    parser.addoption("--seed", type=int, default=None, help="Run only this seed of the simulation.")
