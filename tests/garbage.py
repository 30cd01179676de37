"""Python's search for garbage, in processes that simulate."""

import gc


def search_rarely_for_garbage() -> None:
    """Leave what exists now out of it, and begin one when there is more: simulations make much that stays for a while
    and little garbage, and would search for it for a fifth of their time.
    """
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
