"""Training of models of healthy telemetry, from time to time, for the analyzer (TRANSOM §IV-B).

Learning runs in a separate process. Its result is an event (`telemetry_model_trained`), so it is recorded, and a
restarted historian knows when the next model is due.
"""

from __future__ import annotations

import asyncio
import sys
import time
from datetime import timedelta

import msgspec
import structlog

from holdfast.bus import Bus, BusUnavailable, NoResponder, event_message
from holdfast.clock import Now
from holdfast.decoding import UNREADABLE
from holdfast.engines.telemetry.learning import Learned
from holdfast.events import TelemetryModelTrained
from holdfast.fresh_ids import uuid7
from holdfast.requests import ANALYZER_REQUESTS, Answer, KeepModel
from holdfast.settings.addresses import Address, current
from holdfast.settings.findings.telemetry import TelemetryPolicy
from holdfast.store import StoreUnavailable
from holdfast_historian.learner import LearningTask
from holdfast_historian.retraining_plan import TrainingRecord, is_due
from holdfast_historian.store import HistorianStore

LOOK_EVERY_S = 60.0
LEARNING_S_MAX = 3600.0
ANSWER_S = 5.0
PATIENCE_S = 600.0
"""Longest wait for the analyzer to take a model."""

SOURCE = "historian"

log = structlog.get_logger()


class Retraining:
    """The loop that learns a model when one is due. The learner reads from `database_url`."""

    def __init__(
        self,
        bus: Bus,
        store: HistorianStore,
        database_url: Address,
        policy: TelemetryPolicy,
        now: Now,
        look_every_s: float = LOOK_EVERY_S,
    ) -> None:
        self._bus = bus
        self._store = store
        self._database_url = database_url
        self._policy = policy
        self._now = now
        self._look_every_s = look_every_s
        self._latest: TrainingRecord | None = None
        """The training that this process published last; the record receives it a little later."""

    async def run(self) -> None:
        """Look until cancelled. A service that is away is tried again at the next look."""
        while self._policy.retrain_every_s > 0:
            # Not at once: a process that restarts in a loop would only learn.
            await asyncio.sleep(self._look_every_s)
            try:
                last, now = _newer(await self._store.last_training(), self._latest), self._now()
                # The second question costs the database some work, so it comes last.
                if is_due(last, now, now, self._policy) and is_due(
                    last, await self._store.newest_telemetry(), now, self._policy
                ):
                    await self._train()
            except (StoreUnavailable, BusUnavailable) as error:
                log.warning("no model was learned, trying again later", error=str(error))

    async def _train(self) -> None:
        began = time.monotonic()
        try:
            learned = await self._learned()
        except LearnerFailed as error:
            log.error("learning a model of telemetry failed", reason=str(error))
            learned = Learned(why_not=f"learning failed: {error}")
        model, why_not = learned.model, learned.why_not
        if model is not None and not why_not:
            why_not = await self._bring(model.version, msgspec.json.encode(model))
        scores = model.scores if model is not None else None
        event = TelemetryModelTrained(
            id=uuid7(),
            at=self._now(),
            source=SOURCE,
            learned_until=learned.learned_until,
            version=model.version if model is not None else "",
            windows=model.windows if model is not None else 0,
            accuracy=scores.accuracy if scores is not None else None,
            precision=scores.precision if scores is not None else None,
            recall=scores.recall if scores is not None else None,
            is_used=not why_not,
            took_s=time.monotonic() - began,
            reason=why_not or f"version {model.version if model else ''} is in use",
        )
        await self._bus.publish(event_message(event))
        self._latest = TrainingRecord(at=event.at, learned_until=event.learned_until, is_used=event.is_used)
        log.info("a model of telemetry was learned", version=event.version, used=event.is_used, reason=event.reason)

    async def _learned(self) -> Learned:
        now = self._now()
        since = now - timedelta(seconds=self._policy.learn_from_s)
        task = LearningTask(database_url=current(self._database_url), policy=self._policy, since=since, now=now)
        learner = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "holdfast_historian.learner",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            async with asyncio.timeout(LEARNING_S_MAX):
                output, errors = await learner.communicate(msgspec.json.encode(task))
        except TimeoutError:
            raise LearnerFailed(f"it was not done after {LEARNING_S_MAX:g} s") from None
        finally:
            if learner.returncode is None:
                learner.kill()
                await learner.wait()
        if learner.returncode:
            last = errors.decode(errors="replace").strip().rpartition("\n")[2]
            raise LearnerFailed(last or f"it ended with exit code {learner.returncode}")
        try:
            return msgspec.json.decode(output, type=Learned)
        except UNREADABLE as error:
            raise LearnerFailed(f"its output cannot be read: {error}") from error

    async def _bring(self, version: str, model: bytes) -> str:
        """Return the reason why the analyzer does not use the model; "" if it does."""
        request = KeepModel(id=uuid7(), asked_by=SOURCE, model=msgspec.Raw(model))
        try:
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    try:
                        answer = await self._bus.request(ANALYZER_REQUESTS, msgspec.json.encode(request), ANSWER_S)
                        reply = msgspec.json.decode(answer, type=Answer)
                        return "" if reply.accepted else reply.message
                    except (NoResponder, BusUnavailable):
                        await asyncio.sleep(1.0)
                    except UNREADABLE as error:
                        return f"the analyzer answers something that is no answer: {error}"
        except TimeoutError:
            return f"version {version} is not used: the analyzer did not answer within {PATIENCE_S:g} s"


class LearnerFailed(Exception):
    """The learner failed; the message has the reason."""


def _newer(one: TrainingRecord | None, other: TrainingRecord | None) -> TrainingRecord | None:
    return max((it for it in (one, other) if it is not None), key=lambda it: it.at, default=None)
