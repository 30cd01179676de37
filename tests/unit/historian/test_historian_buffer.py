"""The buffer between receiving and writing: batches, order, bounds."""

import asyncio

from holdfast_historian.buffer import BatchLimits, Buffer


async def test_a_full_batch_waits_for_nothing() -> None:
    buffer: Buffer[int] = Buffer(BatchLimits(items_max=3, wait_s=3600))
    for number in range(7):
        await buffer.put(number, 1)
    assert await buffer.batch() == [0, 1, 2]
    assert await buffer.batch() == [3, 4, 5]


async def test_bytes_fill_a_batch_too() -> None:
    buffer: Buffer[str] = Buffer(BatchLimits(bytes_max=100, wait_s=3600))
    for item, size_bytes in (("a", 60), ("b", 50), ("c", 500)):
        await buffer.put(item, size_bytes)
    assert [await buffer.batch() for _ in range(3)] == [["a"], ["b"], ["c"]]


async def test_a_partial_batch_is_taken_after_a_moment() -> None:
    buffer: Buffer[int] = Buffer(BatchLimits(wait_s=0.001))
    taking = asyncio.create_task(buffer.batch())
    await buffer.put(1, 1)
    assert await taking == [1]


async def test_more_than_four_batches_wait_outside() -> None:
    buffer: Buffer[int] = Buffer(BatchLimits(items_max=2, wait_s=3600))
    finished: list[int] = []

    async def fill() -> None:
        for number in range(10):
            await buffer.put(number, 1)
            finished.append(number)

    filling = asyncio.create_task(fill())
    await asyncio.sleep(0)
    assert finished == list(range(8))
    assert await buffer.batch() == [0, 1]
    await filling
    assert [await buffer.batch() for _ in range(4)] == [[2, 3], [4, 5], [6, 7], [8, 9]]
