"""Paths that leave their namespace, their folder or the API if they are read differently."""

from __future__ import annotations

from tests.hostile.attack import (
    API,
    CORE,
    EMBEDDED,
    GONE,
    PLATFORM,
    Attack,
)

_RED = f"{PLATFORM}/namespaces/red"
_NOWHERE = (403, 404, 400)
_MOVED = (*_NOWHERE, 301, 307, 308)
"""Kubernetes redirects to the clean path, which is authorised like any other."""

_TO_SECRETS: dict[str, str] = {
    "by dots": "/api/v1/namespaces/red/../blue/secrets",
    "by encoded dots": "/api/v1/namespaces/red/%2e%2e/blue/secrets",
    "by doubly encoded dots": "/api/v1/namespaces/red/%252e%252e/blue/secrets",
    "by an encoded name": "/api/v1/namespaces/%62lue/secrets",
    "by a double slash": "//api/v1/namespaces/blue/secrets",
    "by an empty segment": "/api/v1/namespaces//blue/secrets",
    "by an encoded slash": "/api/v1/namespaces/red%2F..%2Fblue/secrets",
    "by a backslash": "/api/v1/namespaces/red\\..\\blue/secrets",
    "by a semicolon": "/api/v1/namespaces/red;/../blue/secrets",
    "in capitals": "/API/V1/namespaces/blue/secrets",
    "by a NUL": "/api/v1/namespaces/red%00/../blue/secrets",
    "by overlong UTF-8": "/api/v1/namespaces/red/%c0%ae%c0%ae/blue/secrets",
    "by a fragment": "/api/v1/namespaces/blue/secrets%23",
    "by an absolute URL": "http://localhost/api/v1/namespaces/blue/secrets",
    "by a query for a namespace": "/api/v1/secrets?namespace=blue",
    "by a watch of the old kind": "/api/v1/watch/namespaces/blue/secrets",
    "by a name that leaves": "/api/v1/namespaces/red/secrets/..%2F..%2Fblue%2Fsecrets%2Fkeys",
    "by another version": "/api/v2/namespaces/blue/secrets",
    "by the healthy path": "/healthz/../api/v1/namespaces/blue/secrets",
    "by an open path": "/openapi/../api/v1/namespaces/blue/secrets",
    "by the platform's path": f"{PLATFORM}/../../../api/v1/namespaces/blue/secrets",
}
_BLOBS: dict[str, str] = {
    "a path": "sha256:..%2F..%2F..%2F..%2Fetc%2Fpasswd",
    "a path with a digest's length": "sha256:" + "..%2F" * 12 + "etcd",
    "another algorithm": "md5:" + "0" * 32,
    "capitals": "sha256:" + "A" * 64,
    "a digest and more": "sha256:" + "0" * 64 + "%2F..%2Fx",
    "a line break": "sha256:" + "0" * 64 + "%0A",
    "the files of the store": "..%2F..%2Fstore.db",
}
_LOGS: dict[str, str] = {
    "a path": "..%2F..%2F..%2Faudit.log",
    "the folder itself": ".",
    "the folder above": "..",
    "an absolute path": "%2Fetc%2Fpasswd",
    "a NUL": "0-worker-0-u%00",
    "the record": "0-worker-0-u%2Fkept.json",
}
_OTHERS: dict[str, tuple[str, str]] = {
    "the container of a log": ("GET", f"{_RED}/runs/own/logs/x?container=..%2F..%2Fetc"),
    "the box": ("GET", f"{_RED}/mailboxes/..%2F..%2Fblue/events"),
    "the key of a call": ("GET", f"{_RED}/mailboxes/$box/results/..%2Fx"),
    "the key of a step": ("PUT", f"{_RED}/stepresults/..%2F..%2Fx"),
    "the run": ("GET", f"{_RED}/runs/..%2F..%2Fblue%2Fruns%2Fplan/why"),
    "the namespace": ("GET", f"{PLATFORM}/namespaces/red%2F..%2Fblue/ps"),
    "the node": ("GET", f"{CORE}/nodes/..%2Fnamespaces%2Fblue%2Fsecrets"),
    "the token": ("DELETE", f"{PLATFORM}/tokens/..%2F..%2Fx"),
    "the subresource": ("GET", f"{API}/namespaces/red/runs/own/..%2Fplan"),
    "a proxy to elsewhere": ("GET", f"{CORE}/nodes/$node/proxy/..%2F..%2Fmetrics"),
    "a proxy to another host": ("GET", f"{CORE}/nodes/http:evil.example:80/proxy/"),
}
_METHODS = ("TRACE", "CONNECT", "PROPFIND", "get", "OPTIONS", "XYZZY")

ROWS: list[Attack] = [
    *(
        Attack(f"a member reads secrets {how}", "rita", "GET", path, expected=_NOWHERE,
               on_kubernetes=_MOVED)
        for how, path in _TO_SECRETS.items()
    ),
    *(
        Attack(f"a member downloads code whose digest is {what}", "rita", "GET",
               f"{_RED}/blobs/{digest}", expected=_NOWHERE, on_kubernetes=_MOVED)
        for what, digest in _BLOBS.items()
    ),
    *(
        Attack(f"a member uploads code whose digest is {what}", "rita", "PATCH",
               f"{_RED}/blobs/{digest}", b"evil", kind="application/octet-stream",
               headers={"Upload-Offset": "0", "Upload-Length": "4"}, expected=(*_NOWHERE, 405),
               on_kubernetes=(*_MOVED, 405))
        for what, digest in _BLOBS.items()
    ),
    *(
        Attack(f"a member reads a log that is {what}", "rita", "GET",
               f"{_RED}/runs/own/logs/{log}", expected=_NOWHERE, on_kubernetes=_MOVED)
        for what, log in _LOGS.items()
    ),
    *(
        Attack(f"a member leaves by {what}", "rita", method, path, expected=(*_NOWHERE, 405),
               on_kubernetes=(*_MOVED, 405))
        for what, (method, path) in _OTHERS.items()
    ),
    *(
        Attack(f"a member's method is {method}", "rita", method,
               f"{CORE}/namespaces/blue/secrets/keys", expected=(400, 403, 405, GONE))
        for method in _METHODS
    ),
    Attack("a member tells the method in a header", "rita", "POST",
           f"{CORE}/namespaces/red/secrets?_method=DELETE", {},
           headers={"X-HTTP-Method-Override": "DELETE"}, expected=(400, 422)),
    Attack("a member tells another host", "rita", "GET", f"{CORE}/namespaces/blue/secrets",
           headers={"Host": "evil.example"}),
    Attack("a member tells the path in a header", "rita", "GET", "/version",
           headers={"X-Original-URL": f"{CORE}/namespaces/blue/secrets",
                    "X-Rewrite-URL": f"{CORE}/namespaces/blue/secrets"}, expected=(200,)),
    Attack("a member reads the audit log", "rita", "GET", "/logs/audit.log",
           expected=(403, 404)),
    Attack("a member reads a profile of the server", "rita", "GET", "/debug/pprof/",
           expected=(403, 404)),
    Attack("a member reads the settings of the server", "rita", "GET", "/configz",
           expected=(403, 404)),
    Attack("a member reads the files of the console", "rita", "GET",
           "/static/..%2f..%2f..%2fetc/passwd", expected=_NOWHERE),
    Attack("a member asks for a page of the ledger in a format that is a path", "rita", "GET",
           f"{_RED}/statement?month=2026-01&format=..%2F..%2Fetc", expected=(400, 404)),
    Attack("a member asks for a month that is no month", "rita", "GET",
           f"{_RED}/statement?month=2026-01%27%3BDROP+TABLE+usage--", expected=(400, 404)),
    Attack("a member groups the usage by SQL", "rita", "GET",
           f"{_RED}/usage?by=user%27+OR+1%3D1--", expected=(400, 404)),
    Attack("a member asks for another team's usage by its own", "rita", "GET",
           f"{_RED}/usage?namespace=blue&team=blue", expected=(200, 400, 404),
           lacks=('"blue"',)),
    Attack("a member's lines are more than numbers", "rita", "GET",
           f"{CORE}/namespaces/red/pods/$own_pod/log?tailLines=1e9", expected=(400,),
           engines=EMBEDDED),
]  # fmt: skip
