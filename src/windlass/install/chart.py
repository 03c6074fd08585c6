"""A Helm chart and a kustomize base of an installation. Pure: folders are mappings of files.

Both are made from the objects of `render.parts`, so that nothing is defined twice. The chart is
made by rendering with placeholders instead of options: a text that contains a placeholder becomes
an expression over `.Values`, and lines that an option adds become a block under its condition.
`tests/kubernetes/test_chart.py` compares what Helm and kustomize make of them with `render.parts`.
"""

from __future__ import annotations

import base64
import collections
import dataclasses
import difflib
import functools
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from windlass.install import certificates, names
from windlass.install.manifests import render
from windlass.install.manifests.render import Certificates
from windlass.install.names import Object
from windlass.install.options import Options
from windlass.version import VERSION

Files = dict[str, str]
Lines = list[str]


@dataclasses.dataclass(frozen=True, slots=True)
class Value:
    """A value of the chart, which is an option of `windlass install`."""

    name: str
    option: str
    placeholder: str
    text: str
    """The comment in values.yaml."""


VALUES = (
    Value("image", "image", "chart.example/image:1", "Image of Windlass, also by digest."),
    Value("pullSecret", "pull_secret", "chart-pull-secret", "Secret to pull the image with."),
    Value("apiAddress", "api_address", "chart-api.example:64999", "HOST:PORT of the API server."),
    Value("serverAddress", "server_address", "https://chart-server.example",
          "https:// address of the server for pods."),
    Value("environments", "environments", "claim:chart-environments",
          "claim:NAME that stores Python environments."),
    Value("hostMounts", "host_mounts", "/chart/host/mounts",
          "Folders of nodes, separated by commas, that members' runs may mount."),
    Value("ledger", "ledger", "secret:chart-ledger/chart-key",
          "secret:NAME/KEY with the address of a PostgreSQL database."),
    Value("storageClass", "storage_class", "chart-storage-class",
          "Storage class of the server's volume; cannot change later."),
    Value("storageSize", "storage_size", "777777Gi",
          "Size of the server's volume; cannot change later."),
    Value("storage", "storage", "s3://chart-storage/x?endpoint=https://chart-storage.example",
          "Object storage instead of the volume; needs ledger and storageSecret."),
    Value("storageSecret", "storage_secret", "chart-storage-secret",
          "Secret in windlass-system with the keys of the storage."),
    Value(
        "monitoring",
        "monitoring",
        "chart-monitoring/chart-prometheus",
        "NAMESPACE/NAME of the ServiceAccount of Prometheus, or none.",
    ),
    Value("replicas", "replicas", "9", "Number of servers; more than one needs storage."),
)  # fmt: skip
_ALWAYS = ("image", "storage_size", "replicas")
"""Options that are never empty: no line depends on whether they are given."""
_SHARED = ("storage", "storage_secret", "ledger")
"""The options of servers without a volume; they are given together."""
_FLAGS = ("api_address", "server_address", "environments", "host_mounts", "ledger", "storage_class",
          "monitoring", "pull_secret")  # fmt: skip
"""Options each of which adds or changes lines; in the order of lines at one place."""
_CONDITIONS = {value.option: f".Values.{value.name}" for value in VALUES} | {
    "monitoring": 'and .Values.monitoring (ne .Values.monitoring "none")'
}
"""Option -> whether it is given."""
_OPERATOR = "monitoring.coreos.com/v1"
"""Kinds that only clusters with the Prometheus Operator have; `install` leaves them out, too."""
_REPLICAS = "chart-replicas"

_MADE = Certificates(
    *(f"chart-certificate-{field.name}" for field in dataclasses.fields(Certificates))
)
_KEYS = ("authority", "authorityKey", "bundle", "certificate", "key", "metricsCertificate",
         "metricsKey")  # fmt: skip


def helm(options: Options) -> Files:
    """The chart; its values are the given options."""
    files: Files = {
        "Chart.yaml": _CHART.format(version=VERSION),
        "values.yaml": _values(options),
        "templates/_helpers.tpl": _helpers(),
        "templates/checks.yaml": _CHECKS,
    }
    for part, objects in _parts(Options()).items():
        if part == "kinds":
            files |= _crds(objects)
        else:
            files[f"templates/{part}.yaml"] = "".join(_template(part))
    return files


def kustomize(options: Options, keys: Certificates) -> tuple[Files, str]:
    """The base, and the content of `secrets.yaml`, which has private keys."""
    files: Files = {}
    secrets: list[Object] = []
    for part in render.parts(options, keys):
        if part.name == "kinds":
            files |= _crds(part.objects)
            continue
        secrets += [obj for obj in part.objects if obj["kind"] == "Secret"]
        rest = [obj for obj in part.objects if obj["kind"] != "Secret"]
        files[f"{part.name}.yaml"] = render.as_yaml(rest)
    listed = "".join(f"  - {name}\n" for name in [*files, "secrets.yaml"])
    files["kustomization.yaml"] = (
        f"apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n{listed}"
    )
    return files, render.as_yaml(secrets)


def _crds(objects: Iterable[Object]) -> Files:
    return {f"crds/{obj['metadata']['name']}.yaml": render.as_yaml([obj]) for obj in objects}


# --- the chart: objects with conditions -----------------------------------------------------------


def _given(*chosen: str) -> Options:
    found = {value.option: value.placeholder for value in VALUES}
    wanted = (*_ALWAYS, *chosen) if "storage" in chosen else (*_ALWAYS[:2], *chosen)
    return Options(**{option: found[option] for option in wanted})


@functools.cache
def _parts(options: Options) -> dict[str, list[Object]]:
    found: dict[str, list[Object]] = {}
    for part in render.parts(options, _MADE):
        found[part.name] = [_with_placeholders(obj) for obj in part.objects]
    return found


def _with_placeholders(obj: Object) -> Object:
    """A number has no placeholder of its own."""
    if obj["kind"] == "Deployment" and obj["metadata"]["name"] == names.SERVER:
        return obj | {"spec": obj["spec"] | {"replicas": _REPLICAS}}
    if obj["kind"] == "ConfigMap" and obj["metadata"]["name"] == names.INSTALLATION:
        return obj | {"data": obj["data"] | {"replicas": f"{_REPLICAS}-text"}}
    return obj


def _identity(obj: Object) -> tuple[str, ...]:
    metadata = obj["metadata"]
    return obj["kind"], metadata.get("namespace", ""), metadata["name"]


def _template(part: str) -> Iterator[str]:
    """The text of one template: each object under the condition under which it exists."""
    alone, shared, watched = (
        {_identity(obj): obj for obj in _parts(_given(*chosen))[part]}
        for chosen in ((), _SHARED, ("monitoring",))
    )
    for key in dict.fromkeys([*alone, *shared, *watched]):
        if key == ("ConfigMap", names.SYSTEM, names.INSTALLATION):
            # It has all options, given or not.
            everything = _parts(_given(*(value.option for value in VALUES)))[part]
            yield from _block(*(_lines(obj) for obj in everything if _identity(obj) == key))
        elif key not in alone and key not in shared:
            has = f'(.Capabilities.APIVersions.Has "{_OPERATOR}")'
            needs = has if watched[key]["apiVersion"] == _OPERATOR else "true"
            yield f"{{{{- if and ({_CONDITIONS['monitoring']}) {needs} }}}}\n"
            yield from _block(_merged(part, key, ("monitoring",)), ["{{- end }}"])
        elif alone.get(key) == shared.get(key):
            yield from _block(_merged(part, key, ()))
        else:
            yield "{{- if .Values.storage }}\n"
            yield from _block(_merged(part, key, _SHARED)) if key in shared else ()
            yield "{{- else }}\n"
            yield from _block(_merged(part, key, ())) if key in alone else ()
            yield "{{- end }}\n"


def _block(*several: Lines) -> Iterator[str]:
    for lines in several:
        yield "\n".join(lines) + "\n"


def _merged(part: str, key: tuple[str, ...], base: tuple[str, ...]) -> Lines:
    """The lines of an object, those that depend on an option under its condition."""
    lines = _lines(_one(part, key, base))
    before: dict[int, Lines] = collections.defaultdict(list)
    replaced: dict[int, tuple[int, Lines]] = {}
    for flag in _FLAGS:
        if flag in base:
            continue
        changed = _lines(_one(part, key, (*base, flag)))
        condition = f"{{{{- if {_CONDITIONS[flag]} }}}}"
        matcher = difflib.SequenceMatcher(None, lines, changed, autojunk=False)
        for kind, start, end, from_, to in matcher.get_opcodes():
            if kind == "insert":
                before[start] += [condition, *changed[from_:to], "{{- end }}"]
            elif kind != "equal":
                if start in replaced:
                    raise ValueError(f"two options change line {lines[start]!r} of {key}")
                block = [condition, *changed[from_:to], "{{- else }}", *lines[start:end]]
                replaced[start] = end, [*block, "{{- end }}"]
    result: Lines = []
    at = 0
    while at <= len(lines):
        result += before.get(at, ())
        if at in replaced:
            at, block = replaced[at]
            result += block
            continue
        result += lines[at : at + 1]
        at += 1
    return result


def _one(part: str, key: tuple[str, ...], chosen: tuple[str, ...]) -> Object:
    return next(obj for obj in _parts(_given(*chosen))[part] if _identity(obj) == key)


# --- the chart: texts with expressions ------------------------------------------------------------


def _lines(obj: Object) -> Lines:
    """The object as YAML with expressions in place of placeholders."""
    expressions: dict[str, str] = {}
    marked = _marked(obj, expressions)
    text = render.as_yaml([marked]).rstrip("\n")
    text = text.replace("{{", '{{ "{{" }}')  # templates of Prometheus and Grafana
    for token, expression in expressions.items():
        text = text.replace(token, expression)
    return text.split("\n")


def _marked(found: Any, expressions: dict[str, str]) -> Any:
    if isinstance(found, Mapping):
        return {key: _marked(value, expressions) for key, value in found.items()}
    if isinstance(found, list | tuple):
        return [_marked(each, expressions) for each in found]
    if not isinstance(found, str):
        return found
    if found == _REPLICAS:
        expression = "{{ int .Values.replicas }}"
    else:
        pieces = [each for each in _PLACEHOLDERS.split(found) if each]
        if not any(each in _EXPRESSIONS for each in pieces):
            return found
        inner = " ".join(_EXPRESSIONS.get(each) or json.dumps(each) for each in pieces)
        expression = f"{{{{ {inner if len(pieces) == 1 else f'print {inner}'} | toJson }}}}"
    # Derived from the expression: equal texts stay equal lines.
    token = "x" + hashlib.sha256(expression.encode()).hexdigest()[:20]
    expressions[token] = expression
    return token


def _expressions() -> dict[str, str]:
    """Placeholder -> what it becomes inside of {{ }}."""
    found = {
        value.placeholder: f".Values.{value.name}" for value in VALUES if value.name != "replicas"
    }
    found[f"{_REPLICAS}-text"] = "(toString .Values.replicas)"
    values = {value.name: value.placeholder for value in VALUES}
    host, _, port = values["apiAddress"].rpartition(":")
    found[host] = '(regexReplaceAll ":[0-9]+$" .Values.apiAddress "")'
    found[port] = '(regexFind "[0-9]+$" .Values.apiAddress)'
    secret, _, key = values["ledger"].removeprefix("secret:").partition("/")
    found[secret] = '(regexReplaceAll "^secret:([^/]*)/.*$" .Values.ledger "${1}")'
    found[key] = '(regexReplaceAll "^[^/]*/" .Values.ledger "")'
    found[values["environments"].removeprefix("claim:")] = (
        '(trimPrefix "claim:" .Values.environments)'
    )
    namespace, _, account = values["monitoring"].partition("/")
    found[namespace] = '(regexReplaceAll "/.*$" .Values.monitoring "")'
    found[account] = '(regexReplaceAll "^[^/]*/" .Values.monitoring "")'
    for field, key in zip(dataclasses.fields(Certificates), _KEYS, strict=True):
        text = getattr(_MADE, field.name)
        expression = f'(index (include "windlass.certificates" . | fromJson) "{key}")'
        found[text] = expression
        found[base64.b64encode(text.encode()).decode()] = f"({expression} | b64enc)"
        digest = hashlib.sha256(text.encode()).hexdigest()[:16]
        found[digest] = f"({expression} | sha256sum | trunc 16)"
    return found


_EXPRESSIONS = _expressions()
_PLACEHOLDERS = re.compile(
    f"({'|'.join(re.escape(each) for each in sorted(_EXPRESSIONS, key=len, reverse=True))})"
)

_CHART = """\
apiVersion: v2
name: windlass
description: One shared AI/ML platform from a mix of machines.
type: application
version: {version}
appVersion: "{version}"
kubeVersion: ">=1.34.0-0"
"""


def _values(options: Options) -> str:
    lines = ["# The options of `windlass install`."]
    for value in VALUES:
        given = getattr(options, value.option)
        shown = given if value.option == "replicas" else json.dumps(given)
        lines += [f"# {value.text}", f"{value.name}: {shown}"]
    lines += [
        "# The server's certificate and its authority (PEM). If empty, those of the cluster are",
        "# kept, or made for ten years. Give all of them where charts are rendered without access",
        "# to the cluster, such as by Argo CD.",
        "certificates:",
        *(f'  {key}: ""' for key in _KEYS),
    ]
    return "\n".join(lines) + "\n"


_HELPERS = """\
{{- define "windlass.certificates" -}}
{{- if .Values.certificates.key -}}
{{- toJson .Values.certificates -}}
{{- else -}}
{{- if not (hasKey .Values "made") -}}
{{- $authority := lookup "v1" "Secret" "SYSTEM" "AUTHORITY" -}}
{{- $served := lookup "v1" "Secret" "SYSTEM" "SERVED" -}}
{{- $measured := lookup "v1" "Secret" "SYSTEM" "MEASURED" -}}
{{- if and $authority $served $measured -}}
{{- $_ := set .Values "made" (dict
      "authority" (index $authority.data "ca.crt" | b64dec)
      "authorityKey" (index $authority.data "ca.key" | b64dec)
      "bundle" (index $authority.data "bundle.crt" | b64dec)
      "certificate" (index $served.data "tls.crt" | b64dec)
      "key" (index $served.data "tls.key" | b64dec)
      "metricsCertificate" (index $measured.data "tls.crt" | b64dec)
      "metricsKey" (index $measured.data "tls.key" | b64dec)) -}}
{{- else -}}
{{- $names := list NAMES -}}
{{- $addresses := list -}}
{{- if .Values.serverAddress -}}
{{- $host := regexReplaceAll ":[0-9]+$" (urlParse .Values.serverAddress).host "" -}}
{{- if regexMatch "^[0-9.]+$" $host -}}
{{- $addresses = append $addresses $host -}}
{{- else -}}
{{- $names = append $names $host -}}
{{- end -}}
{{- end -}}
{{- $ca := genCAWithKey "windlass" 3650 (genPrivateKey "ecdsa") -}}
{{- $key := genPrivateKey "ecdsa" -}}
{{- $made := genSignedCertWithKey (first $names) $addresses $names 3650 $ca $key -}}
{{- $parts := list METRICS -}}
{{- $metricsKey := genPrivateKey "ecdsa" -}}
{{- $metrics := genSignedCertWithKey (first $parts) list $parts 3650 $ca $metricsKey -}}
{{- $_ := set .Values "made" (dict "authority" $ca.Cert "authorityKey" $ca.Key "bundle" $ca.Cert
      "certificate" $made.Cert "key" $made.Key
      "metricsCertificate" $metrics.Cert "metricsKey" $metrics.Key) -}}
{{- end -}}
{{- end -}}
{{- toJson .Values.made -}}
{{- end -}}
{{- end -}}
"""


_CHECKS = """\
{{- if and .Values.storage (not (and .Values.ledger .Values.storageSecret)) -}}
{{- fail "storage needs ledger and storageSecret" -}}
{{- end -}}
{{- if and (gt (int .Values.replicas) 1) (not .Values.storage) -}}
{{- fail "more than one replica needs ledger, storage and storageSecret" -}}
{{- end -}}
"""


def _helpers() -> str:
    service = Options().server_names(names.SERVER, names.SYSTEM)
    words = {
        "NAMES": " ".join(f'"{name}"' for name in service),
        "SYSTEM": names.SYSTEM,
        "AUTHORITY": names.AUTHORITY,
        "SERVED": names.SERVER_TLS,
        "MEASURED": names.METRICS_TLS,
        "METRICS": " ".join(f'"{name}"' for name in certificates.METRICS_NAMES),
    }
    return re.sub("|".join(words), lambda found: words[found[0]], _HELPERS)
