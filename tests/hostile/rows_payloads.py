"""Bodies and streams that want to keep the server busy or full."""

from __future__ import annotations

import gzip
import json

from tests.hostile.attack import (
    API,
    CORE,
    EMBEDDED,
    GONE,
    JSON_PATCH,
    MERGE,
    PLATFORM,
    STRATEGIC,
    YAML,
    Attack,
    lazily,
    run,
)

_RUNS, _CONFIGS = f"{API}/namespaces/red/runs", f"{CORE}/namespaces/red/configmaps"
_OWN = f"{_RUNS}/own"
_REVIEW = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_BAD = (400, 413, 415, 422, GONE)
_BUSY = (429, 503)


def _nested(depth: int, opening: str, closing: str) -> bytes:
    return (opening * depth + "1" + closing * depth).encode()


def _duplicates(count: int) -> bytes:
    pairs = ",".join(f'"k{number}":1' for number in range(count))
    return f'{{"metadata":{{"name":"hostile-config"}},"data":{{{pairs}}}}}'.encode()


def _laughs(levels: int) -> bytes:
    lines = ['a0: &a0 "lol"']
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, levels)]
    return ("\n".join(lines) + "\n").encode()


def _operations(count: int) -> bytes:
    """Each copies what is there into itself: it doubles."""
    copy = {"op": "copy", "from": "/metadata", "path": "/metadata/annotations"}
    return json.dumps([copy] * count).encode()


def _many_operations(count: int) -> bytes:
    return json.dumps([{"op": "test", "path": "/kind", "value": "Run"}] * count).encode()


def _annotations(count: int, size: int) -> bytes:
    notes = {f"evil.example/{number}": "x" * size for number in range(count)}
    return json.dumps({"metadata": {"name": "hostile-config", "annotations": notes}}).encode()


def _labels(count: int) -> bytes:
    labels = {f"evil.example/l{number}": "x" for number in range(count)}
    return json.dumps({"metadata": {"name": "hostile-config", "labels": labels}}).encode()


def _filled(size: int) -> bytes:
    return json.dumps({"metadata": {"name": "hostile-config"}, "data": {"k": "x" * size}}).encode()


def _zipped(size: int) -> bytes:
    return gzip.compress(_filled(size))


def _finalizers(count: int) -> bytes:
    named = [f"evil.example/f{number}" for number in range(count)]
    return json.dumps({"metadata": {"name": "hostile-config", "finalizers": named}}).encode()


def _owners(count: int) -> bytes:
    owner = {"apiVersion": "v1", "kind": "Secret", "name": "x", "uid": "x"}
    listed = [owner | {"uid": str(number)} for number in range(count)]
    return json.dumps(
        {"metadata": {"name": "hostile-config", "ownerReferences": listed}}
    ).encode()  # fmt: skip


def _roles(count: int) -> bytes:
    body = run("hostile-large")
    body["spec"]["roles"] = [{"name": f"r{n}", "command": ["true"]} for n in range(count)]
    return json.dumps(body).encode()


def _command(words: int, size: int) -> bytes:
    body = run("hostile-large")
    body["spec"]["roles"][0]["command"] = ["x" * size] * words
    return json.dumps(body).encode()


_BODIES: list[tuple[str, object, str, tuple[int, ...]]] = [
    ("is 4 MiB", lazily(_filled, 4 << 20), "application/json", _BAD),
    ("is larger than an object may be", lazily(_filled, 2 << 20), "application/json", _BAD),
    ("is a deep object", lazily(_nested, 20_000, '{"a":', "}"), "application/json", _BAD),
    ("is a deep list", lazily(_nested, 100_000, "[", "]"), "application/json", _BAD),
    ("is a deep flow of YAML", lazily(_nested, 5_000, "[", "]"), YAML, _BAD),
    ("is a billion laughs", lazily(_laughs, 12), YAML, _BAD),
    ("is YAML that makes Python objects",
     b"!!python/object/apply:os.system ['touch /tmp/hostile']", YAML, _BAD),
    ("is not UTF-8", b'{"metadata":{"name":"hostile-\xff\xfe"}}', "application/json", _BAD),
    ("is a lone surrogate", b'{"metadata":{"name":"hostile-\\ud800"}}', "application/json", _BAD),
    ("is no number", b'{"metadata":{"name":"hostile-config","generation":NaN}}',
     "application/json", _BAD),
    ("is a huge number", b'{"metadata":{"name":"hostile-config","generation":1' + b"0" * 5000
     + b"}}", "application/json", _BAD),
    ("is a list", b"[]", "application/json", _BAD),
    ("is null", b"null", "application/json", _BAD),
    ("is empty", b"", "application/json", _BAD),
    ("breaks off", b'{"metadata":{"name":"hostile-config"', "application/json", _BAD),
    ("is protobuf that is noise", b"k8s\x00" + b"\xff" * 200,
     "application/vnd.kubernetes.protobuf", _BAD),
    ("is protobuf that tells a false length", b"k8s\x00\x0a\xff\xff\xff\xff\x7f",
     "application/vnd.kubernetes.protobuf", _BAD),
    ("is XML with an entity", b'<!DOCTYPE a [<!ENTITY x SYSTEM "file:///etc/passwd">]><a>&x;</a>',
     "application/xml", _BAD),
    ("is a form", b"kind=ConfigMap&metadata.name=hostile-config",
     "application/x-www-form-urlencoded", _BAD),
    ("has too many annotations", lazily(_annotations, 300, 1000), "application/json", _BAD),
    ("has a label bomb of bad names", b'{"metadata":{"name":"hostile-config","labels":'
     b'{"' + b"x" * 300 + b'":"y"}}}', "application/json", _BAD),
    ("has a label with a line break",
     b'{"metadata":{"name":"hostile-config","labels":{"a":"b\\nc"}}}', "application/json", _BAD),
]  # fmt: skip
_HARMLESS: list[tuple[str, object, dict[str, str]]] = [
    ("has 2,000 labels", lazily(_labels, 2_000), {}),
    ("has 2,000 finalizers", lazily(_finalizers, 2_000), {}),
    ("has 2,000 owners", lazily(_owners, 2_000), {}),
    ("has 30,000 keys", lazily(_duplicates, 30_000), {}),
]

ROWS: list[Attack] = [
    *(
        Attack(f"a member's body {what}", "rita", "POST", _CONFIGS, body, kind=kind,
               expected=expected)
        for what, body, kind, expected in _BODIES
    ),
    *(
        # Only the attacker's own object: it is answered in time, whatever the answer.
        Attack(f"a member's object {what}", "rita", "POST", f"{_CONFIGS}?fieldValidation=Strict",
               body, headers=headers, expected=(201, *_BAD))
        for what, body, headers in _HARMLESS
    ),
    Attack("a member's body is a large YAML", "rita", "POST", _CONFIGS, lazily(_filled, 1 << 20),
           kind=YAML, expected=_BAD, on_kubernetes=(201, *_BAD)),
    Attack("a member's body unpacks to 64 MiB", "rita", "POST", _CONFIGS,
           lazily(_zipped, 64 << 20), headers={"Content-Encoding": "gzip"}, expected=_BAD,
           engines=EMBEDDED),
    Attack("a member's body has an encoding that is none", "rita", "POST", _CONFIGS, b"x",
           headers={"Content-Encoding": "evil"}, expected=_BAD),
    Attack("a member's run has 100 roles", "rita", "POST", _RUNS, lazily(_roles, 100),
           expected=_BAD),
    Attack("a member's run has a command of 1,000 words", "rita", "POST", _RUNS,
           lazily(_command, 1000, 10), expected=_BAD),
    Attack("a member's run has words of 2 MiB", "rita", "POST", _RUNS,
           lazily(_command, 1, 2 << 20), expected=_BAD),
    Attack("a member's operations double themselves", "rita", "PATCH", _OWN,
           lazily(_operations, 60), kind=JSON_PATCH, expected=_BAD),
    Attack("a member's operations are 20,000", "rita", "PATCH", _OWN,
           lazily(_many_operations, 20_000), kind=JSON_PATCH, expected=(200, *_BAD)),
    Attack("a member's operations have no path", "rita", "PATCH", _OWN, [{"op": "add"}],
           kind=JSON_PATCH, expected=_BAD),
    Attack("a member's operations have a path of the whole", "rita", "PATCH", _OWN,
           [{"op": "replace", "path": "", "value": {}}], kind=JSON_PATCH, expected=(403, *_BAD)),
    Attack("a member's operations count beyond the list", "rita", "PATCH", _OWN,
           [{"op": "add", "path": "/spec/roles/99999999999", "value": {}}], kind=JSON_PATCH,
           expected=_BAD),
    Attack("a member's operations are unknown", "rita", "PATCH", _OWN,
           [{"op": "exec", "path": "/", "value": "id"}], kind=JSON_PATCH, expected=_BAD),
    Attack("a member's patch is deep", "rita", "PATCH", _OWN,
           lazily(_nested, 20_000, '{"a":', "}"), kind=MERGE, expected=_BAD),
    Attack("a member's strategic patch has directives that are none", "rita", "PATCH", _OWN,
           {"$$patch": "evil", "$$deleteFromPrimitiveList/x": 1}, kind=STRATEGIC, expected=_BAD),
    Attack("a member's patch has a kind that is none", "rita", "PATCH", _OWN, b"x",
           kind="application/evil", expected=_BAD),
    Attack("anyone's review is a large YAML", "nora", "POST", _REVIEW, lazily(_filled, 1 << 20),
           kind=YAML, expected=_BAD),
    Attack("anyone's review is 2 MiB", "nora", "POST", _REVIEW, lazily(_filled, 2 << 20),
           expected=(201, *_BAD)),
    Attack("anyone's review is deep", "nora", "POST", _REVIEW,
           lazily(_nested, 20_000, '{"a":', "}"), expected=_BAD),
    Attack("anyone's review is a billion laughs", "nora", "POST", _REVIEW, lazily(_laughs, 12),
           kind=YAML, expected=_BAD),
    Attack("nobody sends 3 MiB", "nobody", "POST", _RUNS, lazily(_filled, 3 << 20),
           expected=(401, GONE)),
    Attack("a member tells a length that is no number", "rita", "POST", _CONFIGS, b"{}",
           headers={"Content-Length": "two"}, expected=(400, GONE)),
    Attack("a member tells a negative length", "rita", "POST", _CONFIGS, b"{}",
           headers={"Content-Length": "-2"}, expected=(400, GONE)),
    Attack("a member tells a length and chunks", "rita", "POST", _CONFIGS,
           b"0\r\n\r\nGET /api/v1/secrets HTTP/1.1\r\nHost: x\r\n\r\n",
           headers={"Transfer-Encoding": "chunked"}, expected=(*_BAD, 501)),
    Attack("a member's chunks have sizes that are none", "rita", "POST", _CONFIGS, b"zz\r\n\r\n",
           headers={"Transfer-Encoding": "chunked", "Content-Length": ""},
           expected=(*_BAD, 501)),
    Attack("a member has a header of 64 KiB", "rita", "GET", _RUNS,
           headers={"X-Large": "x" * (64 << 10)}, expected=(200, 400, 431, GONE)),
    Attack("a member has a path of 64 KiB", "rita", "GET", f"{_RUNS}/{'x' * (64 << 10)}",
           expected=(400, 404, 414, 431, GONE)),
    Attack("a member selects by 2,000 labels", "rita", "GET",
           f"{_RUNS}?labelSelector=" + ",".join(f"l{n}%3Dx" for n in range(500)),
           expected=(200, 400, 414)),
    Attack("a member opens 100 watches at once", "rita", "GET",
           f"{_RUNS}?watch=1&timeoutSeconds=2", at_once=100, expected=(200, *_BUSY)),
    Attack("nobody opens 100 connections at once", "nobody", "GET", _RUNS, at_once=100,
           expected=(401, *_BUSY, GONE)),
    Attack("a member lists 50 times at once", "rita", "GET", _RUNS, at_once=50,
           expected=(200, *_BUSY)),
    Attack("a member asks 30 times at once why its run waits", "rita", "GET",
           f"{PLATFORM}/namespaces/red/runs/own/why", at_once=30, expected=(200, *_BUSY)),
    Attack("a member claims 100,000 steps", "rita", "POST",
           f"{PLATFORM}/namespaces/red/steps/lookup",
           lazily(lambda: json.dumps({"pipeline": "p", "step": "s", "owner": "attacker",
                                      "steps": [{"key": "a" * 64}] * 20_000}).encode()),
           expected=_BAD),
    Attack("a member uploads more than a blob may have", "rita", "PATCH",
           f"{PLATFORM}/namespaces/red/blobs/sha256:" + "0" * 64, b"x",
           kind="application/octet-stream",
           headers={"Upload-Offset": "0", "Upload-Length": "999999999999999"}, expected=_BAD),
    Attack("a member uploads to a negative place", "rita", "PATCH",
           f"{PLATFORM}/namespaces/red/blobs/sha256:" + "0" * 64, b"x",
           kind="application/octet-stream",
           headers={"Upload-Offset": "-1", "Upload-Length": "1"}, expected=_BAD),
    Attack("a member uploads beyond the end", "rita", "PATCH",
           f"{PLATFORM}/namespaces/red/blobs/sha256:" + "0" * 64, b"x",
           kind="application/octet-stream",
           headers={"Upload-Offset": "5", "Upload-Length": "6"}, expected=(*_BAD, 409, 416)),
    Attack("a member uploads what is not its digest", "rita", "PATCH",
           f"{PLATFORM}/namespaces/red/blobs/sha256:" + "0" * 64, b"x",
           kind="application/octet-stream",
           headers={"Upload-Offset": "0", "Upload-Length": "1"}, expected=(*_BAD, 409)),
    Attack("a member plans a run that is not one", "rita", "POST",
           f"{PLATFORM}/namespaces/red/plan", {"run": {"spec": {"roles": "x"}}}, expected=_BAD),
]  # fmt: skip
