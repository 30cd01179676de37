"""Options shared by all tests, and the signals that they start with."""

import signal

import pytest

# Whoever starts the tests in the background hands these down ignored, and every process that a test starts would
# ignore them too: the tests of Ctrl-C and of a closed terminal then wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="Rewrite golden traces to what the code decides now.")
    parser.addoption("--seed", type=int, default=None, help="Run only this seed of the simulation.")
