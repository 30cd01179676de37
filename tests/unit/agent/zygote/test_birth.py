"""Which agents get a zygote from the nursery."""

from __future__ import annotations

from holdfast_agent.zygote.birth import REASONS_SHOWN, decline

INHERITED = {
    "namespace net": "net:[1]",
    "namespace uts": "uts:[1]",
    "cgroup": "0::/",
    "Max open files": "1024 4096 files",
}
ENVIRONMENT = (b"PATH=/bin", b"OMP_NUM_THREADS=1", b"HOLDFAST_DIR=/a")


def test_an_agent_that_is_like_the_nursery_is_accepted() -> None:
    assert decline(INHERITED, dict(INHERITED), ENVIRONMENT, reversed(ENVIRONMENT)) is None


def test_variables_of_holdfast_are_not_compared() -> None:
    agent = (*ENVIRONMENT[:2], b"HOLDFAST_DIR=/b", b"HOLDFAST_NODE_DIR=/n")
    assert decline(INHERITED, INHERITED, ENVIRONMENT, agent) is None


def test_what_is_inherited_must_be_the_same() -> None:
    agent = INHERITED | {"namespace uts": "uts:[2]"}
    assert decline(INHERITED, agent, ENVIRONMENT, ENVIRONMENT) == "the agent differs in namespace uts"


def test_what_the_fork_enters_or_is_read_later_may_differ() -> None:
    agent = INHERITED | {"namespace net": "net:[2]", "namespace mnt": "mnt:[2]"}
    assert decline(INHERITED, agent, ENVIRONMENT, (*ENVIRONMENT, b"GLOO_SOCKET_IFNAME=eth0")) is None


def test_what_only_one_of_them_has_is_a_difference() -> None:
    more = INHERITED | {"Seccomp": "2"}
    assert decline(INHERITED, more, (), ()) == decline(more, INHERITED, (), ()) == "the agent differs in Seccomp"


def test_a_variable_is_named_without_its_value() -> None:
    agent = (*ENVIRONMENT[:1], b"OMP_NUM_THREADS=2", b"TOKEN=hidden", *ENVIRONMENT[2:])
    reason = decline(INHERITED, INHERITED, ENVIRONMENT, agent)
    assert reason == "the agent differs in variable OMP_NUM_THREADS, variable TOKEN"


def test_a_reason_stays_short() -> None:
    agent = [b"V%d=" % number for number in range(REASONS_SHOWN + 3)]
    reason = decline({}, {}, (), agent)
    assert reason is not None
    assert reason.endswith("variable V4 and 3 more")
