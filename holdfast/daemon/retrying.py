"""Retries of calls to a server that is away, until it is back."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import structlog
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, wait_exponential

RETRY_MIN_S = 0.05
RETRY_MAX_S = 1.0

T = TypeVar("T")
log = structlog.get_logger(__name__)


async def until_available(
    attempt: Callable[[], Awaitable[T]],
    unavailable: type[Exception] | tuple[type[Exception], ...],
    what: str,
    again: Callable[[], Awaitable[T]] | None = None,
) -> T:
    """Return what `attempt` returns once it no longer raises `unavailable`; other errors pass.

    The retries call `again` instead, if given. `what` names the server in the log. Pauses grow from RETRY_MIN_S to
    RETRY_MAX_S.
    """
    try:
        # Nearly every call succeeds at once and needs no retrying.
        return await attempt()
    except unavailable as error:
        log.warning(f"{what} unavailable, trying again until it is back", error=str(error))
    retry = AsyncRetrying(
        retry=retry_if_exception_type(unavailable),
        wait=wait_exponential(multiplier=RETRY_MIN_S, min=RETRY_MIN_S, max=RETRY_MAX_S),
        before_sleep=_log_new_reason(),
    )
    result: T = await retry(again or attempt)
    log.info(f"{what} is back", tries=retry.statistics["attempt_number"] + 1)
    return result


def _log_new_reason() -> Callable[[RetryCallState], None]:
    logged = ""

    def log_reason(state: RetryCallState) -> None:
        nonlocal logged
        reason = str(state.outcome.exception()) if state.outcome is not None else ""
        if reason != logged:
            logged = reason
            log.warning("still unavailable", error=reason, tries=state.attempt_number)

    return log_reason
