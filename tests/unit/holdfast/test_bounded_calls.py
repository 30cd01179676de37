import threading

import pytest

from holdfast.bounded_calls import within


def test_a_call_that_does_not_return_is_left_behind() -> None:
    over = threading.Event()
    with pytest.raises(TimeoutError):
        within(over.wait, 0.05)
    over.set()


def test_a_call_gives_its_result_or_its_error() -> None:
    assert within(lambda: 7, 30) == 7
    with pytest.raises(ZeroDivisionError):
        within(lambda: 1 // 0, 30)
