"""Nothing that may be secret stays in a debug dump."""

import json

import pytest

from windlass.cli.engine import redaction

RUN = {
    "metadata": {
        "name": "train", "namespace": "vision", "managedFields": [{"manager": "x"}],
        "annotations": {
            "kubectl.kubernetes.io/last-applied-configuration": '{"spec": "hidden-1"}',
            "windlass.dev/replaces": "old",
            "team.example/note": "hidden-2",
        },
    },
    "spec": {
        "user": "ada",
        "roles": [{"name": "worker", "command": ["sh", "-c", "hidden-3"],
                   "env": {"WANDB_KEY": "hidden-4"}, "resources": {"cpu": "2"}}],
        "environment": {"setup": "hidden-5",
                        "requirements": ["--index-url=https://me:hidden-6@pypi.example/simple"]},
    },
    "status": {"phase": "Failed"},
}  # fmt: skip
POD = {
    "spec": {"containers": [{"args": ["hidden-7"], "env": [{"name": "A", "value": "hidden-8"},
                             {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s"}}}]}]},
    "status": {"containerStatuses": [
        {"state": {"terminated": {"exitCode": 1, "message": "hidden-9"}}}]},
}  # fmt: skip


@pytest.mark.parametrize("given", [RUN, POD, [RUN, POD]])
def test_what_users_wrote_is_removed_and_the_rest_stays(given):
    kept = json.dumps(redaction.obj(given))
    assert "hidden" not in kept
    assert "managedFields" not in kept


def test_names_states_and_amounts_stay():
    kept = redaction.obj(RUN)
    assert kept["metadata"]["name"] == "train"
    assert kept["metadata"]["annotations"]["windlass.dev/replaces"] == "old"
    assert kept["spec"]["user"] == "ada"
    assert kept["spec"]["roles"][0]["resources"] == {"cpu": "2"}
    assert list(kept["spec"]["roles"][0]["env"]) == ["WANDB_KEY"]
    variables = redaction.obj(POD)["spec"]["containers"][0]["env"]
    assert variables[1] == {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s"}}}


@pytest.mark.parametrize(
    "line",
    [
        "connecting to postgresql://books:hidden@db.example/books",
        "Authorization: Bearer hidden0123456789",
        "token is wl_ab12_hidden6789012345678901234567890123456789012",
        'config {"password": "hidden", "user": "ada"}',
        "AWS_SECRET_ACCESS_KEY=hidden/abc",
        "--api-key=hidden --verbose",
        "https://bucket.example/x?X-Amz-Signature=hidden&y=1",
        "eyJhbGciOiJSUzI1NiJ9.hiddenhidden.hiddenhidden",
        "-----BEGIN EC PRIVATE KEY-----\nhidden\nhidden\n-----END EC PRIVATE KEY-----",
        "-----BEGIN RSA PRIVATE KEY-----\nhidden and the log was cut",
        "hf_hiddenhiddenhidden01",
    ],
)
def test_a_key_in_a_text_is_removed(line):
    found = redaction.text(f"before {line} after")
    assert "hidden" not in found
    assert found.startswith("before ")


@pytest.mark.parametrize(
    "line",
    [
        "scheduler: run vision/train: assigned to n7",
        "tokens are swept every 6 h",
        "GET https://10.0.0.1:6443/api/v1/nodes 200",
        "certificate is valid for 300 days",
    ],
)
def test_an_ordinary_line_stays_as_it_is(line):
    assert redaction.text(line) == line
