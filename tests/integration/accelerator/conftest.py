"""`accelerators`: processes with the simulated device, the same ones for all tests of a worker."""

from collections.abc import Iterator

import pytest

from tests.accelerator.children import Accelerators, started_accelerators


@pytest.fixture(scope="session")
def accelerators() -> Iterator[Accelerators]:
    with started_accelerators() as started:
        yield started
