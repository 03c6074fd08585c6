"""What hypothesis sends: odd values, bent objects, patches, selectors, paths, headers."""

from __future__ import annotations

import copy
import json
import urllib.parse
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tests.faults.seeds import SOAK
from tests.fuzz import samples

FUZZ = settings(
    max_examples=3000 if SOAK else 100,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
"""How every fuzz test runs."""

ODD_TEXT = [
    "", " ", "\x00", "a\x00b", "\n", "a\n", "\u2028", "\ufeff", "é", "e\u0301", "\U0001f600",
    "\u202eabc", "A" * 300, "a" * 70_000, "../..", "%00", "%2e%2e", "a/b", "-", ".", "..", "~1",
    "null", "true", "1e999", "0x10", "--", "{{}}", "$patch", "default", "windlass-system",
]  # fmt: skip
ODD_NUMBERS = [
    0, -1, 1, 2**31, -(2**31) - 1, 2**53 + 1, 2**63 - 1, 2**63, -(2**63) - 1, 2**64, 10**30,
    10**400, -(10**400), 0.0, -0.0, 0.1, 1e308, 5e-324, 1.0,
]  # fmt: skip

texts = st.one_of(
    st.sampled_from(ODD_TEXT), st.text(max_size=20), st.from_regex(r"[a-z0-9.-]{1,10}")
)
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from(ODD_NUMBERS),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    texts,
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(texts, inner, max_size=4)),
    max_leaves=8,
)
resources = st.sampled_from(samples.RESOURCES)
names = st.from_regex(r"fuzz-[a-d]", fullmatch=True)


def encoded(value: Any) -> bytes:
    """JSON that escapes what it must, so that any str can be sent."""
    return json.dumps(value).encode()


def deep(depth: int, opening: str = '{"a":', closing: str = "}") -> bytes:
    return (opening * depth + "1" + closing * depth).encode()


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value inside."""
    found = [at]
    if isinstance(value, dict):
        for key, inner in value.items():
            found += places(inner, (*at, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            found += places(inner, (*at, index))
    return found


def replaced(value: Any, at: tuple[Any, ...], new: Any) -> Any:
    if not at:
        return new
    changed = copy.copy(value)
    changed[at[0]] = replaced(value[at[0]], at[1:], new)
    return changed


@st.composite
def bent(draw: st.DrawFn, value: Any) -> Any:
    """A valid value with one to three of its parts replaced."""
    for _ in range(draw(st.integers(1, 3))):
        choices = places(value)
        value = replaced(value, draw(st.sampled_from(choices)), draw(values))
    return value


def pointer(at: tuple[Any, ...]) -> str:
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in at)


@st.composite
def json_patches(draw: st.DrawFn, target: Any) -> list[Any]:
    """Operations that mostly make sense on the target."""
    paths = st.one_of(
        st.sampled_from([pointer(at) for at in places(target)]),
        texts.map(lambda text: "/" + text),
        texts,
    )
    operation = st.one_of(
        st.fixed_dictionaries(
            {"op": st.sampled_from(["add", "replace", "test"]), "path": paths, "value": values}
        ),
        st.fixed_dictionaries({"op": st.just("remove"), "path": paths}),
        st.fixed_dictionaries(
            {"op": st.sampled_from(["move", "copy"]), "path": paths, "from": paths}
        ),
        st.dictionaries(st.sampled_from(["op", "path", "from", "value"]), values),
        values,
    )
    return draw(st.lists(operation, max_size=6))


@st.composite
def strategic_patches(draw: st.DrawFn, target: Any) -> Any:
    """A bent object with directives thrown in."""
    patch = draw(bent(target))
    directives = st.sampled_from(
        ["$patch", "$retainKeys", "$setElementOrder/containers", "$setElementOrder/env",
         "$deleteFromPrimitiveList/finalizers", "$deleteFromPrimitiveList/a"]
    )  # fmt: skip
    choices = [at for at in places(patch) if isinstance(_read(patch, at), dict)]
    if choices:
        at = draw(st.sampled_from(choices))
        word = st.one_of(st.sampled_from(["delete", "replace", "merge"]), values)
        patch = replaced(
            patch, at, _read(patch, at) | draw(st.dictionaries(directives, word, max_size=3))
        )
    return patch


def _read(value: Any, at: tuple[Any, ...]) -> Any:
    for step in at:
        value = value[step]
    return value


# --- query strings, paths, headers ---------------------------------------------------------------

_SELECTOR_PARTS = st.sampled_from(
    ["a", "=", "==", "!=", "!", ",", " in ", " notin ", "(", ")", "(a,b)", "<", ">", "1",
     "9" * 5000, "metadata.name", "status.phase", "x/y", " ", "\\", "é", "\x00", "a" * 64]
)  # fmt: skip
selectors = st.one_of(st.lists(_SELECTOR_PARTS, max_size=8).map("".join), texts)

_PARAMETERS = st.sampled_from(
    ["labelSelector", "fieldSelector", "limit", "continue", "resourceVersion", "watch", "pretty",
     "resourceVersionMatch", "sendInitialEvents", "allowWatchBookmarks", "timeoutSeconds",
     "dryRun", "fieldValidation", "fieldManager", "gracePeriodSeconds", "propagationPolicy",
     "orphanDependents", "includeObject", "container", "tailLines", "sinceSeconds", "follow"]
)  # fmt: skip
_ARGUMENTS = st.one_of(
    selectors,
    st.sampled_from(
        ["0", "1", "-1", "true", "All", "Strict", "Ignore", "Exact", "NotOlderThan", "Object",
         "9" * 18, "9" * 19, "9" * 5000, "WzEsMSwiIiwiYSJd", "Background", "Orphan", "\u0661"]
    ),
)  # fmt: skip


def _queried(parameters: list[tuple[str, str]]) -> bytes:
    quoted = urllib.parse.urlencode(parameters, errors="replace")
    return quoted[:7000].encode()


queries = st.lists(st.tuples(_PARAMETERS, _ARGUMENTS), max_size=4).map(_queried)

_SEGMENTS = st.one_of(
    st.sampled_from(
        ["api", "apis", "v1", "v1alpha1", "windlass.dev", "namespaces", "default", "fuzz", "pods",
         "runs", "status", "log", "exec", "binding", "openapi", "v3", "metrics", "version", "",
         "..", ".", "%00", "%ff", "%2F", "%", "%zz", "\u00e9", "a" * 300, "authorization.k8s.io",
         "selfsubjectaccessreviews", "authentication.k8s.io", "selfsubjectreviews"]
    ),
    st.text(max_size=6),
)  # fmt: skip


def _target(segments: list[str]) -> bytes:
    raw = ("/" + "/".join(segments)).encode("utf-8", "surrogatepass")
    # HTTP itself allows no other bytes; what it does not allow comes percent-encoded.
    return b"".join(b"%c" % byte if 32 < byte < 127 else b"%%%02X" % byte for byte in raw)


paths = st.lists(_SEGMENTS, max_size=8).map(_target)

methods = st.sampled_from([b"GET", b"POST", b"PUT", b"PATCH", b"DELETE", b"HEAD", b"OPTIONS"])
_HEADER_VALUES = st.one_of(
    st.sampled_from(
        [b"application/json", b"application/yaml", b"application/json;as=Table;v=v1;g=meta.k8s.io",
         b"application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io", b"*/*", b"",
         b"application/vnd.kubernetes.protobuf", b"application/merge-patch+json",
         b"application/json-patch+json", b"application/strategic-merge-patch+json",
         b"application/apply-patch+yaml", b"text/plain; charset=\xff", b";;;=,q=nan",
         b"a/b;q=1e999", b"gzip", b"deflate", b"br", b"identity", b"100-continue", b"Bearer",
         b"Bearer \xff",
         b"Basic e30=", b"websocket", b"Upgrade", b"a" * 2000]
    ),
    st.binary(max_size=30).map(lambda b: bytes(c for c in b if c >= 32 and c != 127)),
)  # fmt: skip
headers = st.dictionaries(
    st.sampled_from(
        [b"Accept", b"Content-Type", b"Content-Encoding", b"Authorization", b"Impersonate-User",
         b"Accept-Encoding", b"X-Remote-User", b"Upgrade", b"Connection", b"If-Match", b"Cookie"]
    ),
    _HEADER_VALUES,
    max_size=3,
)  # fmt: skip
