"""Who somebody claims to be: headers, tokens of other issuers and audiences, tokens that ended."""

from __future__ import annotations

from tests.hostile.attack import (
    API,
    CORE,
    EMBEDDED,
    INVALID,
    KUBERNETES,
    PLATFORM,
    UNKNOWN,
    Attack,
    of,
    run,
)

_SECRET = f"{CORE}/namespaces/blue/secrets/keys"
_PS = f"{PLATFORM}/namespaces/blue/ps"
_MASTERS = {"X-Remote-User": "admin", "X-Remote-Group": "system:masters"}
_EXTRA = {"X-Remote-Extra-Authentication.kubernetes.io%2Fnode-Name": "n2"}

_IMPERSONATION: dict[str, dict[str, str]] = {
    "another user": {"Impersonate-User": "bob"},
    "a master": {"Impersonate-User": "admin", "Impersonate-Group": "system:masters"},
    "a node": {"Impersonate-User": "system:node:n1", "Impersonate-Group": "system:nodes"},
    "the controllers": {
        "Impersonate-User": "system:serviceaccount:windlass-system:windlass-controllers",
    },
    "itself with more groups": {"Impersonate-User": "rita", "Impersonate-Group": "system:masters"},
}  # fmt: skip
_FRONT_PROXY: dict[str, dict[str, str]] = {
    "the front proxy": _MASTERS,
    "the front proxy with a node": _MASTERS | _EXTRA,
    "the front proxy in other letters": {"x-remote-USER": "admin", "x_remote_user": "admin"},
    "a proxy that says from where": {"X-Forwarded-For": "127.0.0.1", "X-Forwarded-User": "admin"},
    "a proxy that has verified a certificate": {
        "X-Client-Cert": "CN=admin,O=system:masters", "X-SSL-Client-Verify": "SUCCESS",
    },
}  # fmt: skip
_CREDENTIALS: dict[str, str] = {
    "an empty bearer": "Bearer ",
    "a basic password": "Basic YWRtaW46YWRtaW4=",
    "two tokens": "Bearer x, Bearer y",
    "a token without a signature": "Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhZG1pbiJ9.",
    "a token that is a path": "Bearer ../../../etc/passwd",
    "a very long token": "Bearer " + "x" * 6000,
    "a token of letters beyond ASCII": "Bearer \u00fc\u00fc",
    "a pod's token that was never signed": "Bearer wp_e30.AAAA",
    "a digest scheme": 'Digest username="admin"',
    "null": "Bearer null",
}  # fmt: skip
_ENDED = {"expired": "an expired token", "revoked": "a revoked token"}
_TARGETS = [
    ("reads a secret", "GET", _SECRET),
    ("reads ps", "GET", _PS),
    ("creates a run", "POST", f"{API}/namespaces/blue/runs", run()),
    ("reads nodes", "GET", f"{CORE}/nodes"),
]
_PODS_TOKENS = {
    "pod-tampered": "a pod's token with the claims of another",
    "pod-unsigned": "a pod's token without a signature",
}
_BOOK = f"{PLATFORM}/namespaces/red/runs/own/addresses"

ROWS: list[Attack] = [
    *(
        Attack(f"a member acts as {who}", "rita", "GET", _SECRET, headers=headers)
        for who, headers in _IMPERSONATION.items()
    ),
    *(
        Attack(f"an administrator of a team acts as {who}", "ada", "GET", _SECRET, headers=headers)
        for who, headers in _IMPERSONATION.items()
    ),
    *(
        Attack(
            f"nobody claims to be {who}", "nobody", "GET", _PS, expected=UNKNOWN, headers=headers,
            door="server",
        )
        for who, headers in _FRONT_PROXY.items()
    ),
    *(
        Attack(f"a member claims to be {who}", "rita", "GET", _SECRET, headers=headers)
        for who, headers in _FRONT_PROXY.items()
    ),
    *(
        Attack(
            f"{what} is no credential", "nobody", "GET", _SECRET,
            expected=(*UNKNOWN, 400), headers={"Authorization": value},
        )
        for what, value in _CREDENTIALS.items()
    ),
    *of(_ENDED, _TARGETS, expected=UNKNOWN, engines=EMBEDDED),
    *of(_PODS_TOKENS, _TARGETS[:2], expected=UNKNOWN, engines=EMBEDDED),
    Attack(
        "a member acts as a user whose name is not UTF-8", "rita", "GET", _SECRET,
        expected=(400, 403), headers={"Impersonate-User": "b\udcffb"},
    ),
    Attack(
        "a member's token in the query", "nobody", "GET", f"{_SECRET}?access_token=x",
        expected=UNKNOWN,
    ),
    Attack(
        "a pod's token of another audience at the server", "pod-elsewhere", "GET", _BOOK,
        expected=UNKNOWN, engines=KUBERNETES, door="server",
    ),
    Attack(
        "a pod's token of the cluster's audience at the server", "pod-of-cluster", "GET", _BOOK,
        expected=UNKNOWN, engines=KUBERNETES, door="server",
    ),
    Attack(
        "a pod's token of our audience at the API server", "pod", "GET", _SECRET,
        expected=UNKNOWN, engines=KUBERNETES,
    ),
    Attack(
        "a pod's token with the claims of another at the server", "pod-tampered", "GET",
        f"{PLATFORM}/namespaces/blue/runs/works/addresses", expected=UNKNOWN, engines=KUBERNETES,
        door="server",
    ),
    Attack(
        "the token of a pod that is gone", "pod-gone", "GET", _BOOK, expected=UNKNOWN,
        engines=KUBERNETES, door="server",
    ),
    Attack(
        "a review of another user's token", "rita", "POST",
        "/apis/authentication.k8s.io/v1/tokenreviews", {"spec": {"token": "x"}},
        expected=(403, 404),
    ),
    Attack(
        "a review of another user's access", "rita", "POST",
        "/apis/authorization.k8s.io/v1/subjectaccessreviews",
        {"spec": {"user": "bob", "resourceAttributes": {"verb": "get", "resource": "secrets"}}},
        expected=(403, 404),
    ),
    Attack(
        "a review of oneself that names somebody else", "rita", "POST",
        "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
        {"kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1",
         "spec": {"user": "admin", "groups": ["system:masters"], "resourceAttributes": {
             "verb": "get", "resource": "secrets", "namespace": "blue"}}},
        expected=(201, *INVALID), lacks=('"allowed":true',),
    ),
]  # fmt: skip
