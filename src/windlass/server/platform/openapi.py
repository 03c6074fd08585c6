"""The platform API in its OpenAPI document, generated from the route table.

Schemas of the ledger's answers are made from the structs of `windlass.ledger`. tests/fuzz sends
requests that the document allows and compares the answers with it.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from windlass.server.platform.parameters import TEXT
from windlass.server.platform.paths import GROUP, ROOT, VERSION
from windlass.server.platform.routes import PATTERNS, ROUTES, Reply, Route

Json = dict[str, Any]
_LEDGER_FAILURES = {
    "400": "A parameter is invalid; the message says which, and what is allowed.",
    "401": "The token is not known.",
    "403": "The caller may not list these runs.",
    "404": "There is no such namespace, or this server has no ledger.",
    "503": "The ledger's database does not answer now.",
}
_HEAD_MISSING = {"404": {"description": "Not complete; Upload-Offset says how much is there."}}


def embedded(status: str) -> tuple[Json, Json]:
    """Paths, and the schemas that they need. `status`: the name of the schema of a Status."""
    return _described(ROUTES, status)


def cluster(status: str) -> tuple[Json, Json]:
    """The same for a server beside Kubernetes."""
    return _described(tuple(route for route in ROUTES if not route.embedded), status)


def _described(routes: tuple[Route, ...], status: str) -> tuple[Json, Json]:
    typed, schemas = _ledger_answers()
    paths: Json = {}
    for route in routes:
        if not route.template.startswith(f"{ROOT}/"):
            continue
        for method in route.methods if route.methods != ("GET", "HEAD") else ("GET",):
            described = _operation(route, method, typed, status)
            paths.setdefault(route.template, {})[method.lower()] = described
    return paths, schemas


def _operation(route: Route, method: str, typed: Json, status: str) -> Json:
    failure = {"application/json": {"schema": {"$ref": f"#/components/schemas/{status}"}}}
    if route.reply.kind in typed:
        failures: Json = {
            code: {"description": why, "content": failure}
            for code, why in _LEDGER_FAILURES.items()
        }  # fmt: skip
    else:
        failures = {"default": {"description": "The request failed.", "content": failure}}
    if method == "HEAD":
        failures = {**failures, **_HEAD_MISSING}
    operation: Json = {
        "operationId": _operation_id(route, method),
        "summary": route.summary,
        "tags": [GROUP],
        "parameters": [
            *(each.described() for each in route.parameters),
            *(_path_parameter(name) for name in re.findall(r"{(\w+)}", route.template)),
        ],
        "responses": {**_success(route, typed), **failures},
        "x-windlass-audience": route.audience,
    }
    if route.body:
        schema = {"type": "object"} if route.body == "application/json" else _BINARY
        operation["requestBody"] = {"required": True, "content": {route.body: {"schema": schema}}}
    return operation


_BINARY: Json = {"type": "string", "format": "binary"}


def _success(route: Route, typed: Json) -> Json:
    reply = route.reply
    content = {media: {"schema": _schema(reply, media, typed)} for media in reply.media}
    described: Json = {"description": route.summary}
    found = {str(reply.code): {**described, "content": content} if content else described}
    if route.template.endswith("/worker/take"):
        found |= {
            "204": {"description": "No call came in time."},
            "410": {"description": "The mailbox is deleted."},
        }
    return found


def _schema(reply: Reply, media: str, typed: Json) -> Json:
    if media != "application/json":
        return _BINARY if media == "application/octet-stream" else TEXT
    if not reply.kind:
        return {"type": "object"}
    return typed[reply.kind] if reply.kind in typed else _head(reply.kind)


def _head(kind: str) -> Json:
    """The fields of every object."""
    metrics = kind.endswith(("Metrics", "MetricsList"))
    version = "metrics.k8s.io/v1beta1" if metrics else f"{GROUP}/{VERSION}"
    return {
        "type": "object",
        "required": ["apiVersion", "kind"],
        "properties": {
            "apiVersion": {"type": "string", "enum": [version]},
            "kind": {"type": "string", "enum": [kind]},
        },
    }


def _operation_id(route: Route, method: str) -> str:
    """`getNamespacesUsage`: unique, because a path and a method are."""
    words = re.findall(r"\w+", route.template.removeprefix(ROOT))
    return method.lower() + "".join(word[:1].upper() + word[1:] for word in words)


def _path_parameter(name: str) -> Json:
    schema = {**TEXT, "pattern": f"^{PATTERNS[name]}$"} if name in PATTERNS else TEXT
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _ledger_answers() -> tuple[Json, Json]:
    """By kind the schema of an answer, and the schemas to which these refer."""
    # Imported here: SQLAlchemy is loaded only where the document is read.
    from windlass.ledger.accounting import reconciliation
    from windlass.ledger.reports import fleet, statement, usage

    answers = {
        "Usage": usage.Report,
        "Statement": statement.Statement,
        "Fleet": fleet.Series,
        "Verdict": reconciliation.ReconciliationReport,
    }
    template = "#/components/schemas/{name}"
    made, schemas = msgspec.json.schema_components(answers.values(), ref_template=template)
    typed = {
        kind: {"allOf": [_head(kind), each]} for kind, each in zip(answers, made, strict=True)
    }  # fmt: skip
    return typed, {name: _without_null(each) for name, each in schemas.items()}


def _without_null(schema: Any) -> Any:
    """OpenAPI 3.0 has no null; answers leave such fields out."""
    if isinstance(schema, list):
        return [_without_null(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    choices = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    if "anyOf" in schema and len(choices) == 1:
        rest = {name: each for name, each in schema.items() if name not in ("anyOf", "default")}
        return _without_null({**rest, **choices[0]})
    return {name: _without_null(each) for name, each in schema.items()}
