"""The ledger's questions in the OpenAPI document of the platform API: paths, parameters, answers.

The schemas of answers are made from the structs that `windlass.ledger` answers with.
"""

from __future__ import annotations

from typing import Any

import msgspec

from windlass.server import platformpaths

Json = dict[str, Any]
_WHEN = ("month", "since", "until", "timeZone")
_TEXTS = {
    "month": "2026-11; default: the current one",
    "since": "instead of a month: 2026-01-01T10:20:00Z",
    "until": "with since; default: now",
    "timeZone": "where months begin; default: UTC",
    "by": "some of team, user, queue, run, device, form, joined by commas",
    "user": "only this user's",
    "queue": "only in this queue",
    "run": "only this run's",
    "top": "only so many rows, the largest",
    "step": "seconds of one point",
    "format": "json, csv or html",
}
_NUMBERS = frozenset({"top", "step"})


def described() -> tuple[Json, Json]:
    """Paths, and the schemas that they answer with."""
    # Late: it loads what the ledger needs, and a server that nobody asks does not pay for it.
    from windlass.ledger import fleet, reports, statement, verifying

    answers = {
        "usage": reports.Report,
        "statement": statement.Statement,
        "fleet": fleet.Series,
        "verify": verifying.Verdict,
    }
    template = "#/components/schemas/{name}"
    made, schemas = msgspec.json.schema_components(answers.values(), ref_template=template)
    by_name = dict(zip(answers, made, strict=True))
    asked = (*_WHEN, "by", "user", "queue", "run", "top")
    root, team = platformpaths.ROOT, f"{platformpaths.ROOT}/namespaces/{{namespace}}"
    paths = {
        f"{root}/usage": _path("usage", "Usage of all teams.", asked, by_name["usage"]),
        f"{team}/usage": _path("teamUsage", "Usage of one team.", asked, by_name["usage"]),
        f"{team}/statement": _path(
            "statement", "A team's month.", ("month", "format"), by_name["statement"]
        ),
        f"{root}/fleet": _path(
            "fleet", "All devices over time.", (*_WHEN, "step", "format"), by_name["fleet"]
        ),
        f"{root}/verify": _path("verify", "Whether it adds up.", _WHEN, by_name["verify"]),
    }
    for path, operation in paths.items():
        if "{namespace}" in path:
            place = {"name": "namespace", "in": "path", "required": True}
            operation["get"]["parameters"].append({**place, "schema": {"type": "string"}})
    return paths, schemas


def _path(name: str, words: str, asked: tuple[str, ...], answer: Json) -> Json:
    return {
        "get": {
            "operationId": name,
            "summary": words,
            "tags": [platformpaths.GROUP],
            "parameters": [
                {
                    "name": each,
                    "in": "query",
                    "description": _TEXTS[each],
                    "schema": {"type": "integer" if each in _NUMBERS else "string"},
                }
                for each in asked
            ],
            "responses": {
                "200": {
                    "description": words,
                    "content": {"application/json": {"schema": answer}},
                },
            },
        }
    }
