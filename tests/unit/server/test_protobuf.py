"""Protobuf bodies: what kubectl sends is read, everything else is refused and never crashes."""

from __future__ import annotations

import base64
import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.server.http import protobuf, protobuf_tables
from windlass.store import errors


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def text(field: int, value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(data)) + data


def entry(field: int, key: str, value: str | bytes) -> bytes:
    return text(field, text(1, key) + text(2, value))


def envelope(api_version: str, kind: str, raw: bytes) -> bytes:
    return b"k8s\0" + text(1, text(1, api_version) + text(2, kind)) + text(2, raw)


META = text(1, text(1, "one") + text(3, "team") + text(8, b"") + entry(11, "a", "b"))

CASES = {
    "namespace": (
        envelope("v1", "Namespace", text(1, text(1, "team") + text(8, b"")) + text(2, b"")),
        {"metadata": {"name": "team"}},
    ),
    "secret with bytes": (
        envelope("v1", "Secret", META + entry(2, "k", b"\x00\xff") + text(3, "Opaque")),
        {
            "metadata": {"name": "one", "namespace": "team", "labels": {"a": "b"}},
            "data": {"k": base64.b64encode(b"\x00\xff").decode()},
            "type": "Opaque",
        },
    ),
    "service with both kinds of target port": (
        envelope(
            "v1", "Service",
            text(2, text(1, number(3, 80) + text(4, number(1, 0) + number(2, 8080)))
                 + text(1, number(3, 81) + text(4, number(1, 1) + text(3, "http")))),
        ),
        {"spec": {"ports": [{"port": 80, "targetPort": 8080}, {"port": 81, "targetPort": "http"}]}},
    ),
    "priority class keeps zero": (
        envelope("scheduling.k8s.io/v1", "PriorityClass", number(2, 0) + number(3, 0)),
        {"value": 0},
    ),
    "negative priority": (
        envelope("scheduling.k8s.io/v1", "PriorityClass", number(2, -5)),
        {"value": -5},
    ),
    "delete options with zero grace": (
        envelope("v1", "DeleteOptions", number(1, 0) + text(2, text(1, "u")) + text(5, "All")),
        {"gracePeriodSeconds": 0, "preconditions": {"uid": "u"}, "dryRun": ["All"]},
    ),
    "lease times in microseconds": (
        envelope(
            "coordination.k8s.io/v1", "Lease",
            text(2, text(1, "me") + number(2, 15) + text(4, number(1, 1) + number(2, 5000))),
        ),
        {
            "spec": {
                "holderIdentity": "me",
                "leaseDurationSeconds": 15,
                "renewTime": "1970-01-01T00:00:01.000005Z",
            }
        },
    ),
    "self review": (
        envelope("authentication.k8s.io/v1", "SelfSubjectReview", text(1, b"") + text(2, b"")),
        {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_reads_what_typed_clients_send(case: str) -> None:
    body, wanted = CASES[case]
    found = protobuf.decode(body)
    del found["apiVersion"], found["kind"]
    assert found == wanted


def test_reads_a_namespace_as_kubectl_v1_36_sent_it() -> None:
    recorded = bytes.fromhex(KUBECTL_CREATE_NAMESPACE)
    found = protobuf.decode(recorded)
    assert found["kind"] == "Namespace"
    assert found["metadata"] == {"name": "recorded"}


REFUSED = {
    "no envelope": (b'{"kind":"Namespace"}', errors.BadRequest, "application/json"),
    "a kind without a table": (envelope("v1", "Pod", b""), errors.UnsupportedMediaType, "Pod"),
    "a field without a table entry": (
        envelope("v1", "ConfigMap", text(99, "x")),
        errors.UnsupportedMediaType,
        "field 99",
    ),
    "cut short": (envelope("v1", "Namespace", META)[:-3], errors.BadRequest, "middle"),
    "endless number": (b"k8s\0" + b"\xff" * 20, errors.BadRequest, "64 bits"),
    "text that is not UTF-8": (
        envelope("v1", "Namespace", text(1, text(1, b"\xff"))),
        errors.BadRequest,
        "utf-8",
    ),
    "a year out of range": (
        envelope("v1", "Event", text(6, number(1, 1 << 60))),
        errors.BadRequest,
        "",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refuses_with_a_reason(case: str) -> None:
    body, kind, words = REFUSED[case]
    with pytest.raises(kind) as caught:
        protobuf.decode(body)
    assert words in caught.value.message


@given(st.binary(max_size=200))
def test_no_bytes_do_more_than_be_refused(noise: bytes) -> None:
    for body in (noise, b"k8s\0" + noise, envelope("v1", "Service", noise)):
        with contextlib.suppress(errors.ApiError):
            protobuf.decode(body)


def test_every_table_names_only_tables_that_exist() -> None:
    plain = {"string", "int", "bool", "bytes", "raw", "map", "bytesmap", "Time", "MicroTime",
             "IntOrString", "ignored"}  # fmt: skip
    for message in protobuf_tables.MESSAGES:
        for field in protobuf._fields(message).values():
            assert field.type in plain or field.type in protobuf_tables.MESSAGES
    assert set(protobuf_tables.KINDS.values()) <= set(protobuf_tables.MESSAGES)


KUBECTL_CREATE_NAMESPACE = (
    "6b3873000a0f0a02763112094e616d65737061636512200a180a087265636f7264656412001a0022"
    "002a0032003800420012001a020a001a002200"
)
