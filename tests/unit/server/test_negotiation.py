"""Accept headers of real clients, and those that nothing fits."""

from __future__ import annotations

import pytest

from windlass.server.apiserver import discovery
from windlass.server.http import negotiation
from windlass.server.http.negotiation import Form
from windlass.store import errors

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
TABLE_BETA = "application/json;as=Table;v=v1beta1;g=meta.k8s.io"

FORMS = {
    None: Form(),
    "*/*": Form(),
    "application/json": Form(),
    "application/json, */*": Form(),
    f"{TABLE},{TABLE_BETA},application/json": Form("table", "v1"),
    f"{TABLE_BETA},application/json": Form("table", "v1beta1"),
    "application/json;as=Table;v=v9;g=meta.k8s.io,application/json": Form(),
    "application/json;as=Table;v=v1;g=other.io,application/json": Form(),
    "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io": Form("partial", "v1"),
    "application/vnd.kubernetes.protobuf;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,"
    "application/json": Form("partial", "v1"),
    "application/vnd.kubernetes.protobuf,application/json": Form(),
    "application/vnd.kubernetes.protobuf": Form(),
    "application/yaml": Form(encoding="yaml"),
    "application/yaml;q=0.1, application/json;q=0.9": Form(),
    "text/html, application/*;q=0.8": Form(),
    "application/json;q=abc, application/yaml": Form(encoding="yaml"),
}


@pytest.mark.parametrize("accept", FORMS)
def test_the_first_form_we_write_is_chosen(accept: str | None) -> None:
    assert negotiation.negotiate(accept) == FORMS[accept]


@pytest.mark.parametrize(
    "accept", ["text/html", "application/cbor", "application/json;q=0", "", ";;,", "application"]
)
def test_nothing_that_fits_is_said(accept: str) -> None:
    with pytest.raises(errors.NotAcceptable, match="application/json"):
        negotiation.negotiate(accept)


AGGREGATED = "application/json;g=apidiscovery.k8s.io;v={};as=APIGroupDiscoveryList"


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        (None, "APIGroupList"),
        ("application/json", "APIGroupList"),
        (AGGREGATED.format("v2") + ",application/json", "apidiscovery.k8s.io/v2"),
        (AGGREGATED.format("v2beta1") + ",application/json", "apidiscovery.k8s.io/v2beta1"),
        (AGGREGATED.format("v3") + ",application/json", "APIGroupList"),
        ("application/json," + AGGREGATED.format("v2"), "APIGroupList"),
    ],
)
def test_discovery_is_aggregated_for_clients_that_prefer_it(accept: str | None, kind: str) -> None:
    found = discovery.document("/apis", accept, "here:1")
    assert found is not None
    assert f'"{kind}"'.encode() in found[0]
    assert ("as=APIGroupDiscoveryList" in found[1]) == kind.startswith("apidiscovery")
