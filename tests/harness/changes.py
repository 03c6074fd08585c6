"""What may not change in an object: on a cluster admission policies judge it, as `windlass install`
puts them there."""

from __future__ import annotations

from tests.harness.rest import Rest
from tests.harness.waiting import until
from tests.unit.kinds import cases
from windlass.install import apply
from windlass.install.manifests import policies


def install(cluster: Rest) -> None:
    """Returns when each of the policies is in force; again is as good as once."""
    for each in policies.changes():
        collection = apply.path_of(each).rpartition("/")[0]
        assert cluster.post(collection, each).status in (201, 409)
    for kind, (old, new) in cases.REFUSED_CHANGES.items():
        collection = kind.resource.path(old["metadata"].get("namespace", ""))
        single = f"{collection}/{old['metadata']['name']}"
        assert cluster.post(collection, old).status == 201
        until(
            lambda at=single, spec=new["spec"]: (
                cluster.merge(at, {"spec": spec}, dryRun="All").status == 422
            ),
            f"changes of {kind.resource.plural} are judged",
        )
        cluster.delete(single)
