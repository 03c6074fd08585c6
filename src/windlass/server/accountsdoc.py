"""The ledger's questions in the OpenAPI document of the platform API: paths, parameters, answers.

The schemas of answers are made from the structs that `windlass.ledger` answers with, and what
parameters may be is what `server.accounts` takes: tests/fuzz asks what the document allows and
compares the answers with it.
"""

from __future__ import annotations

from typing import Any

import msgspec

from windlass.server import platformpaths

Json = dict[str, Any]
MOST = 100_000
"""The largest number that is taken."""
_WHEN = ("month", "since", "until", "timeZone")
_TEXT: Json = {"type": "string"}
_NUMBER: Json = {"type": "integer", "minimum": 0, "maximum": MOST}
_TIME: Json = {"type": "string", "format": "date-time"}
_PARAMETERS: dict[str, tuple[str, Json]] = {
    "month": (
        "2026-11; default: the current one",
        {"type": "string", "pattern": "^(19[7-9][0-9]|[2-9][0-9]{3})-(0[1-9]|1[0-2])$"},
    ),
    "since": ("instead of a month: 2026-01-01T10:20:00Z", _TIME),
    "until": ("with since; default: now", _TIME),
    "timeZone": ("where months begin, as Europe/Berlin; default: UTC", _TEXT),
    "by": ("some of team, user, queue, run, device, form, joined by commas", _TEXT),
    "user": ("only this user's", _TEXT),
    "queue": ("only in this queue", _TEXT),
    "run": ("only this run's", _TEXT),
    "top": ("only so many rows, the largest; 0: all", _NUMBER),
    "step": ("seconds of one point; 0: as fine as makes sense", _NUMBER),
    "format": ("default: json", {"type": "string", "enum": ["json", "csv", "html"]}),
}
_REFUSALS = {
    "400": "A parameter cannot be read; the message says which, and what would be.",
    "401": "Nobody is known by this token.",
    "403": "The caller may not list these runs.",
    "404": "There is no such namespace, or this server keeps no ledger.",
    "503": "The ledger's database cannot be reached now.",
}


def described(refusal: str) -> tuple[Json, Json]:
    """Paths, and the schemas that they answer with. `refusal`: the schema of a Status."""
    # Late: it loads what the ledger needs, and a server that nobody asks does not pay for it.
    from windlass.ledger import fleet, reports, statement, verifying

    answers = {
        "Usage": reports.Report,
        "Statement": statement.Statement,
        "Fleet": fleet.Series,
        "Verdict": verifying.Verdict,
    }
    template = "#/components/schemas/{name}"
    made, schemas = msgspec.json.schema_components(answers.values(), ref_template=template)
    by_kind = {kind: _object(kind, each) for kind, each in zip(answers, made, strict=True)}
    asked = (*_WHEN, "by", "user", "queue", "run", "top")
    root, team = platformpaths.ROOT, f"{platformpaths.ROOT}/namespaces/{{namespace}}"
    listed = (
        (f"{root}/usage", "usage", "Usage of all teams.", asked, "Usage"),
        (f"{team}/usage", "teamUsage", "Usage of one team.", asked, "Usage"),
        (f"{team}/statement", "statement", "A team's month.", ("month", "format"), "Statement"),
        (f"{root}/fleet", "fleet", "All devices over time.", (*_WHEN, "step", "format"), "Fleet"),
        (f"{root}/verify", "verify", "Whether it adds up.", _WHEN, "Verdict"),
    )
    paths = {
        path: {"get": _operation(path, name, words, parameters, by_kind[kind], refusal)}
        for path, name, words, parameters, kind in listed
    }
    return paths, {name: _without_null(each) for name, each in schemas.items()}


def _object(kind: str, answer: Json) -> Json:
    """With what every object says of itself."""
    version = f"{platformpaths.GROUP}/{platformpaths.VERSION}"
    head = {
        "type": "object",
        "required": ["apiVersion", "kind"],
        "properties": {
            "apiVersion": {"type": "string", "enum": [version]},
            "kind": {"type": "string", "enum": [kind]},
        },
    }
    return {"allOf": [head, answer]}


def _without_null(schema: Any) -> Any:
    """OpenAPI 3.0 knows no null; what would be null is left out of answers."""
    if isinstance(schema, list):
        return [_without_null(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    choices = [each for each in schema.get("anyOf", ()) if each != {"type": "null"}]
    if "anyOf" in schema and len(choices) == 1:
        rest = {name: each for name, each in schema.items() if name not in ("anyOf", "default")}
        return _without_null({**rest, **choices[0]})
    return {name: _without_null(each) for name, each in schema.items()}


def _operation(
    path: str, name: str, words: str, asked: tuple[str, ...], answer: Json, refusal: str
) -> Json:
    content: Json = {"application/json": {"schema": answer}}
    if "format" in asked:
        content |= {f"text/{kind}": {"schema": _TEXT} for kind in ("csv", "html")}
    parameters: list[Json] = [
        {"name": each, "in": "query", "description": _PARAMETERS[each][0],
         "schema": _PARAMETERS[each][1]}
        for each in asked
    ]  # fmt: skip
    if "{namespace}" in path:
        place: Json = {"name": "namespace", "in": "path", "required": True, "schema": _TEXT}
        parameters.append(place)
    status = {"application/json": {"schema": {"$ref": f"#/components/schemas/{refusal}"}}}
    refusals = {
        code: {"description": why, "content": status} for code, why in _REFUSALS.items()
    }  # fmt: skip
    return {
        "operationId": name,
        "summary": words,
        "tags": [platformpaths.GROUP],
        "parameters": parameters,
        "responses": {"200": {"description": words, "content": content}, **refusals},
    }
