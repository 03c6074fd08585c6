"""Members of a run, their keys and names; how large a Run may grow."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from windlass.kinds import codec, reasons, registry
from windlass.kinds.schema import type_tree
from windlass.kinds.types import meta, run

DNS_LABEL = re.compile("[a-z0-9]([-a-z0-9]*[a-z0-9])?")
NAMES = st.from_regex(r"[a-z0-9]([-a-z0-9.]{0,38}[a-z0-9])?", fullmatch=True)
ROLES = st.from_regex(r"[a-z]([-a-z0-9]{0,18}[a-z0-9])?", fullmatch=True)
KEYS = st.tuples(st.uuids().map(str), st.integers(0, 10**6), ROLES, st.integers(0, 4095))


@given(NAMES, KEYS)
def test_a_pod_s_name_is_a_dns_label_and_always_the_same(
    name: str, key: tuple[str, int, str, int]
) -> None:
    made = run.pod_name(name, *key)
    assert len(made) <= 63
    assert DNS_LABEL.fullmatch(made)
    assert made == run.pod_name(name, *key)


@given(NAMES, KEYS, NAMES, KEYS)
def test_other_members_have_other_names(
    name: str, key: tuple[str, int, str, int], other: str, other_key: tuple[str, int, str, int]
) -> None:
    if key != other_key:
        assert run.pod_name(name, *key) != run.pod_name(other, *other_key)


def test_runs_and_roles_that_read_the_same_do_not_share_pods() -> None:
    one = run.pod_name("a-b", "uid-1", 0, "c", 0)
    other = run.pod_name("a", "uid-2", 0, "b-c", 0)
    assert one.startswith("a-b-c-0-")
    assert other.startswith("a-b-c-0-")
    assert one != other


def test_a_minimal_run_has_one_worker() -> None:
    made = codec.from_dict(run.Run, {"spec": {"roles": [{"command": ["true"]}]}})
    [role] = made.spec.roles
    assert (role.name, role.replicas, role.min_replicas) == ("worker", 1, None)
    assert made.status.phase == "Queued"
    assert not made.finished


def _held(member: run.Member) -> list[run.Held]:
    """The most that is kept for the ledger: 200 copied places of an earlier attempt, and members of
    this one that ended one by one."""
    at = "2026-01-01T10:20:00Z"
    before = run.Held(attempt=0, role="worker", count=200, since=at, until=at,
                      members=[member] * 200)  # fmt: skip
    now = run.Held(attempt=1, role="worker", count=4096, since=at, until=at, lasted=[86400] * 4096)
    return [before, now]


def test_a_run_of_4096_members_stays_below_512_kib() -> None:
    devices = [f"gpu/{index}" for index in range(8)]
    member = run.Member(node="node-0123456789.rack-07", devices=devices)
    history = [
        run.Transition(at="2026-01-01T10:20:00Z", from_phase="Starting", to_phase="Running",
                       reason="MembersRunning", message="x" * 200, by="scheduler")
    ] * run.HISTORY_LENGTH  # fmt: skip
    assignment = run.Assignment(attempt=1, epoch=2, members={"worker": [member] * 4096})
    big = run.Run(
        metadata=meta.ObjectMeta(name="big", namespace="support"),
        spec=run.RunSpec(roles=[run.Role(command=["python", "train.py"], replicas=4096)]),
        status=run.RunStatus(assignment=assignment, history=history, held=_held(member)),
    )
    assert len(codec.encode(big)) < 512 * 1024


def test_no_field_has_a_name_that_yaml_reads_as_a_truth_value() -> None:
    def names(node: type_tree.Node) -> set[str]:
        found = set(node.fields)
        for inner in [field.node for field in node.fields.values()] + [node.items]:
            found |= names(inner) if inner else set()
        return found

    traps = {"n", "y", "on", "off", "yes", "no", "true", "false", "null"}
    for kind in registry.OWN:
        assert not {name.lower() for name in names(type_tree.of_kind(kind))} & traps


def test_every_reason_names_the_actor_and_the_remedy() -> None:
    for reason in reasons.Reason:
        about = reason.about
        assert about.meaning.endswith(".")
        assert about.remedy.endswith(".")
        assert about.command.split()[0] in ("kubectl", "windlass")
    assert str(reasons.Reason.NODE_LOST) == "NodeLost"


def test_every_retry_cause_is_a_reason_or_a_failure() -> None:
    causes = type_tree.of_type(run.Retries).fields["causes"].node.items
    assert causes is not None
    assert set(causes.enum) - {"Failed"} <= {str(reason) for reason in reasons.Reason}


def test_kinds_are_found_by_every_word_people_use() -> None:
    for word in ("run", "runs", "wr", "runs.windlass.dev"):
        assert registry.by_word()[word] is run.Run
    assert len({kind.resource.key for kind in registry.ALL}) == len(registry.ALL)
