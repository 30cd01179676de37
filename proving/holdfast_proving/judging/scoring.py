"""The scoreboard: simulations of several policies under the same faults, measured and compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import mean, stdev
from time import process_time

import msgspec

from holdfast.events import IncidentOpened, JobFinished, NodeStateChanged
from holdfast.policy_scores import ComplaintCount, CurvePoint, Estimate, PolicyScore, Scoreboard
from holdfast_proving.inside.cluster import EVENTS_MAX, Cluster
from holdfast_proving.judging.blame import incidents_of_culprits
from holdfast_proving.judging.complaints import Wrong
from holdfast_proving.judging.history import GRACE_S, History
from holdfast_proving.judging.judges import judge
from holdfast_proving.judging.suspicions import cleared
from holdfast_proving.policies.oracle import ORACLE
from holdfast_proving.policies.policy import Policy
from holdfast_proving.scenario.scenario import Scenario
from holdfast_proving.truth.generator import DAY_S, HOUR_S
from holdfast_proving.world.time_book import TimeBook

_WRONG_EVICTIONS = (Wrong.INNOCENT_EVICTED, Wrong.BLAMED_FOR_SHARED, Wrong.INNOCENT_KEPT_OUT)
_T = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)
"""Student's t for 95 % and one to ten degrees of freedom."""

CURVE_POINTS_MAX = 600
BAD_SHARE = 0.01
"""Share of the time in which the sliding ETTR is worse than the `bad_hour`."""


class Interrupted(Exception):
    """Raised by a progress function to end the simulations; what is over is scored."""


Progress = Callable[[str, int, float], None]
"""Called with policy, seed and the share of the simulation that is over."""


class Trial:
    """One finished simulation, reduced to what the scoreboard needs."""

    def __init__(self, cluster: Cluster, oracle: Cluster | None) -> None:
        history = History(cluster)
        books = [training.book for training in cluster.trainings]
        self.seed = cluster.seed
        self.days = sum(book.total_s for book in books) / DAY_S or 1.0
        self.spent_s = Counter[str]()
        for book in books:
            self.spent_s.update(book.spent_s)
        self.lost_s = sum(book.lost_s for book in books) / self.days
        self.ettr = self.spent_s["productive"] / (self.days * DAY_S)
        self.worst_hour = min((worst_hour(book) for book in books), default=1.0)
        self.incidents = sum(1 for _ in history.of(IncidentOpened))
        self.evictions = len(history.evictions)
        self.cleared_evictions = cleared(history)
        self.incidents_of_culprits = incidents_of_culprits(history)
        self.ended_jobs = ended_jobs(history)
        self.blocked_well_h = blocked_well_h(history)
        self.pool_h = pool_h(history)
        self.curve = cluster.curve.points()
        self.is_cut_short = cluster.is_cut_short
        self.faults = len(cluster.ledger.records)
        self.complaints = judge(cluster, oracle)


def score_policies(
    name: str,
    scenario: Scenario,
    policies: Sequence[Policy],
    seeds: Sequence[int],
    progress: Progress = lambda policy, seed, share: None,
    events_max: int = EVENTS_MAX,
) -> Scoreboard:
    began_s = process_time()
    trials: dict[str, list[Trial]] = {policy.name: [] for policy in policies}
    best: list[Trial] = []
    done: list[int] = []
    for seed in seeds:
        try:
            oracle = _simulated(scenario, seed, ORACLE, progress, events_max)
            of_seed = {policy.name: _trial(scenario, seed, policy, oracle, progress, events_max) for policy in policies}
        except Interrupted:
            break
        best.append(Trial(oracle, None))
        for policy in policies:
            trials[policy.name].append(of_seed[policy.name])
        done.append(seed)
    scores = [_score(policy, trials[policy.name], best, scenario) for policy in policies] if done else []
    return Scoreboard(
        scenario=name,
        title=scenario.title,
        days=scenario.days,
        seeds=tuple(done),
        seeds_wanted=len(seeds),
        faults=sum(trial.faults for trial in best),
        machines=sum(machines.count for machines in scenario.machines),
        cpu_s=process_time() - began_s,
        scores=tuple(_compared(scores, [trials[policy.name] for policy in policies])),
    )


def _trial(
    scenario: Scenario, seed: int, policy: Policy, oracle: Cluster, progress: Progress, events_max: int
) -> Trial:
    cluster = oracle if policy is ORACLE else _simulated(scenario, seed, policy, progress, events_max)
    return Trial(cluster, oracle)


def _simulated(scenario: Scenario, seed: int, policy: Policy, progress: Progress, events_max: int) -> Cluster:
    cluster = Cluster(scenario, seed, policy)
    return cluster.run(progress=lambda share: progress(policy.name, seed, share), events_max=events_max)


def _score(policy: Policy, trials: Sequence[Trial], best: Sequence[Trial], scenario: Scenario) -> PolicyScore:
    complaints = Counter(complaint.wrong for trial in trials for complaint in trial.complaints)
    days = sum(trial.days for trial in trials)
    spent = sum((trial.spent_s for trial in trials), Counter[str]())
    return PolicyScore(
        policy=policy.name,
        about=policy.about,
        ettr=estimate([trial.ettr for trial in trials]),
        worst_hour=min(trial.worst_hour for trial in trials),
        bad_hour=bad_hour([point.last_hour for trial in trials for point in trial.curve]),
        lost_s=estimate([trial.lost_s for trial in trials]),
        lost_by_cause_s={cause: spent_s / days for cause, spent_s in spent.most_common() if cause != "productive"},
        regret_s=estimate([ours.lost_s - theirs.lost_s for ours, theirs in zip(trials, best, strict=True)]),
        incidents=sum(trial.incidents for trial in trials),
        evictions=sum(trial.evictions for trial in trials),
        wrong_evictions=sum(complaints[wrong] for wrong in _WRONG_EVICTIONS),
        cleared_evictions=sum(trial.cleared_evictions for trial in trials),
        missed_culprits=complaints[Wrong.CULPRIT_STAYS],
        culprits_by_incidents=dict(sorted(sum((it.incidents_of_culprits for it in trials), Counter[int]()).items())),
        blocked_well_h=sum(trial.blocked_well_h for trial in trials),
        pool_h=sum(trial.pool_h for trial in trials),
        ended_jobs=sum(trial.ended_jobs for trial in trials),
        cut_short=sum(trial.is_cut_short for trial in trials),
        complaints=tuple(_counted(wrong, count, trials, scenario) for wrong, count in complaints.most_common()),
        curve=_thinned(trials[0]),
    )


def _thinned(trial: Trial) -> tuple[CurvePoint, ...]:
    """Return the curve of one simulation, of neighbouring points the one with the worst hour."""
    every = max(1, -(-len(trial.curve) // CURVE_POINTS_MAX))
    groups = (trial.curve[first : first + every] for first in range(0, len(trial.curve), every))
    worst = (min(group, key=lambda point: point.last_hour) for group in groups)
    return tuple(CurvePoint(it.at_s / HOUR_S, round(it.cumulative, 5), round(it.last_hour, 5)) for it in worst)


def _compared(scores: Sequence[PolicyScore], trials: Sequence[Sequence[Trial]]) -> Iterator[PolicyScore]:
    """Add the difference to the first policy, by pairs: the same faults make it smaller than either spread."""
    for number, score in enumerate(scores):
        pairs = zip(trials[number], trials[0], strict=True)
        than_first_s = estimate([ours.lost_s - first.lost_s for ours, first in pairs])
        yield msgspec.structs.replace(score, than_first_s=than_first_s) if number else score


def _counted(wrong: Wrong, count: int, trials: Iterable[Trial], scenario: Scenario) -> ComplaintCount:
    seed, first = next((trial.seed, it) for trial in trials for it in trial.complaints if it.wrong == wrong)
    return ComplaintCount(
        wrong=wrong,
        count=count,
        is_known=wrong in scenario.known_wrong,
        seed=seed,
        at_s=first.at_s,
        job=first.job,
        node=first.node,
        text=first.text,
    )


def estimate(values: Sequence[float]) -> Estimate:
    """Return the mean of one value for each seed, with its confidence interval."""
    if len(values) < 2:
        return Estimate(mean=values[0] if values else 0.0)
    t = _T[len(values) - 2] if len(values) <= len(_T) + 1 else 1.96
    half = t * stdev(values) / len(values) ** 0.5
    middle = mean(values)
    return Estimate(mean=middle, low=middle - half, high=middle + half)


def worst_hour(book: TimeBook) -> float:
    """Return the smallest share of an hour in which steps were made: the least of the sliding ETTR."""
    worst = 1.0
    for number, stretch in enumerate(book.stretches):
        # The worst hour begins with a stretch, or ends with one, which is the first of another.
        until_s = stretch.since_s + HOUR_S
        lost_s = 0.0
        for other in book.stretches[number:]:
            if other.since_s >= until_s:
                break
            lost_s += min(other.until_s, until_s) - other.since_s
        worst = min(worst, 1.0 - lost_s / HOUR_S)
    return max(0.0, worst)


def bad_hour(sliding: Sequence[float]) -> float:
    """Return the one-hour ETTR that is exceeded 99 % of the time."""
    return sorted(sliding)[int(BAD_SHARE * len(sliding))] if sliding else 1.0


def pool_h(history: History) -> float:
    """Return the machine-hours that machines spent as standbys."""
    since_s: dict[str, float] = {}
    total_s = 0.0
    for at_s, event in history.of(NodeStateChanged):
        node = event.node or ""
        if (began_s := since_s.pop(node, None)) is not None:
            total_s += at_s - began_s
        if event.new_state == "standby":
            since_s[node] = at_s
    return (total_s + sum(history.end_s - began_s for began_s in since_s.values())) / HOUR_S


def ended_jobs(history: History) -> int:
    """Return the number of trainings that ended as failed. A test of machines fails if none is free to compare with."""
    finished = (event for _, event in history.of(JobFinished) if event.job in history.trainings)
    return sum(event.outcome == "failed" for event in finished)


def blocked_well_h(history: History) -> float:
    """Return the machine-hours that machines spent on the blocklist with nothing wrong at the time of eviction."""
    total_s = 0.0
    for at_s, event in history.evictions:
        node = event.node or ""
        if history.ledger.is_at_fault(node, at_s, GRACE_S):
            continue
        total_s += min(history.blocked_until_s(at_s, event), history.end_s) - at_s
    return total_s / HOUR_S
