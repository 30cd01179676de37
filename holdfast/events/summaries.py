"""One line of plain English for each type of event, for timelines.

The historian stores it beside the event. Samples that come every second have none.
"""

from __future__ import annotations

from functools import singledispatch

from holdfast import events

EXCEPTION_CHARS_MAX = 200
"""Limit for the first line of an exception's message."""

CODE_CHARS = 12
"""Limit for the digest that names a version of the code."""


_TEMPLATES: dict[type[events.Event], str] = {
    events.CheckpointSaved: "checkpoint of step {0.step} saved in {0.took_s:.3f} s",
    events.NodesAwaited: "{0.available} of {0.wanted} nodes available",
    events.NodeStateChanged: "{0.old_state} to {0.new_state}: {0.reason}",
    events.ShardsBackedUp: "step {0.step} is on {0.keeper} as well",
    events.TelemetryModelTrained: "{0.reason}",
    events.IncidentClosed: "{0.outcome}: {0.reason}",
    events.IncidentDiagnosed: "{0.symptom}, by rule {0.rule} ({0.confidence:.2f}): {0.reason}",
    events.IncidentOpened: "{0.symptom}: {0.reason}",
    events.JobFinished: "{0.outcome}: {0.reason}",
    events.FaultInjected: "{0.fault} {0.state} on purpose by {0.by}",
    events.FirstStep: "all ranks of the node completed step {0.step}",
    events.StepsNumbered: "the script gives number {0.step} to the first step of this generation: {0.step_source_name}",
    events.BusWentBack: "the bus lost messages of stream {0.stream} from number {0.sequence} on; publishing them again",
    events.MessageRejected: "{0.consumer} rejected a message on {0.subject}: {0.error}",
    events.NodeDeparted: "agent shut down on purpose",
    events.SpoolSetAside: "the agent's spool was damaged ({0.detail}) and is kept as {0.path}; "
    "unpublished events are lost",
    events.NodeRefused: "agent with pid {0.place.pid} on {0.place.hostname} refused: the node is held by the agent "
    "with pid {0.holder.pid} on {0.holder.hostname}",
    events.NodeRegistered: "agent started on {0.facts.hostname}",
    events.OrderRefused: "received the order of epoch {0.epoch} and generation {0.generation}, "
    "having obeyed {0.newest_epoch}/{0.newest_generation}",
    events.ShardDamaged: "step {0.step} of rank {0.rank} is damaged in the memory of {0.held_by}: {0.detail}",
    events.StepNotPersisted: "{0.reason}",
    events.KeepingInterrupted: "no step is kept after step {0.step}: {0.reason}",
    events.CopiesRefused: "no copies go to {0.keeper}: {0.reason}",
    events.StepsKept: "step {0.step} is in the memory of the nodes",
    events.NodeLost: "no heartbeat for {0.silent_s:.1f} s",
    events.StepRestorable: "step {0.step} can be restored",
    events.StepsCertified: "certified up to step {0.step}",
    events.StepTimeMeasured: "a step takes {0.median_s:.3f} s",
}


def summary(event: events.Event) -> str:
    """Return the event in one line; "" for samples that come every second."""
    template = _TEMPLATES.get(type(event))
    return _sentence(event) if template is None else template.format(event)


@singledispatch
def _sentence(event: events.Event) -> str:
    return event.reason if isinstance(event, events.Decision) else ""


# --- decisions -----------------------------------------------------------------------------------------


@_sentence.register
def _(event: events.GenerationStarted) -> str:
    start = "" if event.restore_step is None else f" from step {event.restore_step}"
    limit = "" if event.restore_at_most is None else f", none after {event.restore_at_most}"
    return f"generation {event.generation} on {', '.join(event.nodes)}{start}{limit}: {event.reason}"


# --- evidence ------------------------------------------------------------------------------------------


@_sentence.register
def _(event: events.CheckpointRestored) -> str:
    if event.tier == "nothing":
        return "no step was restored, the job begins with its first one"
    newest = f", the newest found is {event.newest_step}" if event.newest_step > event.step else ""
    return f"step {event.step} was restored from {event.tier}{newest}"


@_sentence.register
def _(event: events.KeepingSpaced) -> str:
    steps = "every step" if event.every == 1 else f"one step in {event.every}"
    why = "that costs little enough by now"
    if event.rank is not None:
        why = f"keeping one costs rank {event.rank} {event.keep_s:.2g} s, its steps take {event.step_s:.2g} s"
    return f"from step {event.step} on {steps} is kept in memory: {why}"


@_sentence.register
def _(event: events.NodeInspected) -> str:
    return "; ".join(_words(check.name, check.status, check.detail) for check in event.checks) or "no checks"


@_sentence.register
def _(event: events.ProcessExited) -> str:
    if event.exception is not None:
        end = f"raised {event.exception.type}: {event.exception.headline[:EXCEPTION_CHARS_MAX]}"
    elif event.signal is not None:
        end = f"was killed by signal {event.signal}"
    elif event.exit_code is not None:
        end = f"ended with exit code {event.exit_code}"
    else:
        end = f"is gone: {event.detail or 'no exit status'}"
    step = "before any step" if event.step == -1 else f"last step {event.step}"
    return f"rank {event.rank} {end}, {step}"


@_sentence.register
def _(event: events.LogSignature) -> str:
    times = "" if event.count == 1 else f" ({event.count} such lines)"
    return f"rank {event.rank} printed: {event.lines[0] if event.lines else ''}{times}"


@_sentence.register
def _(event: events.Inspection) -> str:
    return _words(
        event.check,
        event.device,
        "" if event.state == "alert" else event.state,
        "(the whole machine)" if event.scope == "host" else "",
        f"[{event.confidence}]",
        event.detail or "".join(event.lines[:1]),
    )


@_sentence.register
def _(event: events.DiagnosticResult) -> str:
    peers = f"with {', '.join(event.peers)}" if event.peers else ""
    value = "" if event.value is None else f"{event.value:.3f} {event.unit}".rstrip()
    return _words(event.test, event.device, peers, event.status, value, event.detail)


@_sentence.register
def _(event: events.ReplayResult) -> str:
    bad = "" if event.replay.bad_step is None else f", bad numbers at step {event.replay.bad_step}"
    return f"rank {event.rank} of its group replayed to step {event.replay.last}{bad}"


@_sentence.register
def _(event: events.StackDump) -> str:
    return f"stacks of {len(event.processes)} processes in {event.took_s:.1f} s"


@_sentence.register
def _(event: events.CollectiveTrace) -> str:
    return f"collectives of {len(event.ranks)} ranks"


@_sentence.register
def _(event: events.CollectivesProfiled) -> str:
    return f"profiles of {len(event.ranks)} ranks over their last iterations"


@_sentence.register
def _(event: events.SlownessTested) -> str:
    return (
        f"tested while training was held: matrix products on {len(event.compute_s)} ranks, {len(event.transfers)} links"
    )


@_sentence.register
def _(event: events.CodeNotInPlace) -> str:
    return f"code {event.version[:CODE_CHARS]}: {event.detail}"


# --- findings ------------------------------------------------------------------------------------------


@_sentence.register
def _(event: events.ThroughputMeasured) -> str:
    tokens = "" if event.tokens_per_s is None else f", {event.tokens_per_s:.0f} tokens/s"
    mfu = "" if event.mfu is None else f", MFU {100 * event.mfu:.1f} %"
    return f"a step takes {event.step_s:.3f} s{tokens}{mfu}"


@_sentence.register
def _(event: events.MfuDeclined) -> str:
    return f"training at {100 * event.share_left:.0f} % of its pace since step {event.since_step}"


@_sentence.register
def _(event: events.FailSlowOnset) -> str:
    return f"got slower: {_paces(event)}"


@_sentence.register
def _(event: events.FailSlowRelieved) -> str:
    return f"{'is as fast as it was' if event.is_over else 'got faster'}: {_paces(event)}"


@_sentence.register
def _(event: events.FailSlowLocated) -> str:
    tested = "tested" if event.is_validated else "not tested"
    return f"{event.summary or 'no suspects'} ({tested}){_asked(event.asked_by)}"


@_sentence.register
def _(event: events.JobTraced) -> str:
    return f"{event.processes} processes traced: {event.summary or 'no suspects'}{_asked(event.asked_by)}"


@_sentence.register
def _(event: events.HangFound) -> str:
    return f"no progress for {event.still_s:.1f} s {since_step(event.step)}: {event.summary or 'no machine named'}"


@_sentence.register
def _(event: events.HangSuspected) -> str:
    since = since_step(event.step)
    return f"no progress for {event.still_s:.1f} s in phase {event.phase} {since}; tracing its processes"


def since_step(step: int) -> str:
    """Return how far a job is whose last completed step is this one; -1: none yet."""
    return f"after step {step}" if step >= 0 else "before the first step"


@_sentence.register
def _(event: events.DeadlinePassed) -> str:
    missing = f"(missing: {', '.join(event.missing_nodes)})" if event.missing_nodes else ""
    return _words(f"waited {event.waited_s:.1f} s for", event.awaited, missing)


@_sentence.register
def _(event: events.SuspectsTested) -> str:
    return event.reason or "the suspects are tested"


@_sentence.register
def _(event: events.TelemetryAnomaly) -> str:
    return event.reason or "telemetry is not as in healthy training"


@_sentence.register
def _(event: events.BadNumber) -> str:
    rank = "" if event.rank is None else f" of rank {event.rank}"
    change = f"rose to {event.value}, its level was {event.level}" if event.kind == "jump" else f"is {event.kind}"
    certified = "no step is certified" if event.certified is None else f"certified up to step {event.certified}"
    log = f" ({event.tag} at {event.logged_step} of a {event.told_by} log)" if event.told_by else ""
    elsewhere = f", and is {event.elsewhere} on other nodes" if event.elsewhere else ""
    return f"{event.quantity.replace('_', ' ')}{rank} {change} at step {event.step}{elsewhere}, {certified}{log}"


# --- actions -------------------------------------------------------------------------------------------


@_sentence.register
def _(event: events.RanksStopped) -> str:
    return f"{len(event.ranks)} ranks ended, {event.killed} by SIGKILL, in {event.took_s:.3f} s"


@_sentence.register
def _(event: events.RanksStarted) -> str:
    user = "root" if event.root_because else event.user
    as_user = f" as {user}" if user else ""
    ahead = f", {event.with_context} with a context made ahead" if event.with_context else ""
    how = "adopted" if event.adopted else "started"
    return f"{len(event.ranks)} ranks {how}{as_user} in {event.took_s:.3f} s{ahead}"


@_sentence.register
def _(event: events.ContextAhead) -> str:
    if not event.is_ready:
        return f"no context is kept ahead for rank {event.rank} on {event.device}: {event.reason}"
    return (
        f"a context for the next start of rank {event.rank} on {event.device} is ready after {event.took_s:.1f} s: "
        f"{event.free_before_bytes >> 20} MiB were free there before, {event.free_bytes >> 20} MiB beside it; "
        f"{event.host_bytes >> 20} MiB of the host"
    )


@_sentence.register
def _(event: events.RanksFinished) -> str:
    return f"{len(event.ranks)} ranks finished"


@_sentence.register
def _(event: events.NodesGranted) -> str:
    return f"granted {', '.join(grant.node for grant in event.grants)}"


@_sentence.register
def _(event: events.CodeInPlace) -> str:
    return (
        f"code {event.version[:CODE_CHARS]} is in place: {event.files} files, "
        f"{event.fetched_bytes} bytes came over the bus"
    )


@_sentence.register
def _(event: events.CredentialsChanged) -> str:
    users, by = ", ".join(event.users), f" by {event.by}" if event.by else ""
    if event.change != "renewed":
        return f"{users} was {event.change}{by}"
    return f"new {'passwords' if event.kind == 'password' else 'keys to sign orders'} for {users}{by}"


@_sentence.register
def _(event: events.ShardsFetched) -> str:
    ranks = ", ".join(map(str, event.ranks))
    return f"step {event.step} of rank {ranks} fetched from {event.keeper} in {event.took_s:.3f} s"


# --- metrics -------------------------------------------------------------------------------------------


@_sentence.register
def _(event: events.TelemetryMeasured) -> str:
    return f"resource use of {len(event.ranks)} ranks"


@_sentence.register
def _(event: events.NumbersLogged) -> str:
    return f"{len(event.samples)} readings of {event.path}"


@_sentence.register
def _(event: events.CopiesMeasured) -> str:
    skipped = f", {event.skipped} steps were skipped" if event.skipped else ""
    return f"step {event.step} is on {event.keeper} as well{skipped}"


def _words(*words: str) -> str:
    return " ".join(word for word in words if word)


def _paces(event: events.FailSlowOnset | events.FailSlowRelieved) -> str:
    return f"{event.before_s:.3f} s an iteration, now {event.after_s:.3f} s"


def _asked(by: str) -> str:
    return f" (asked by {by})" if by else ""
