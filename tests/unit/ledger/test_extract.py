"""What members held of devices, as their assignment names it, and what they would cost."""

import pytest

from tests.unit.control import build
from windlass.kinds.types import run
from windlass.ledger import model
from windlass.ledger.ingest import estimate, extract
from windlass.ledger.pricing import price_list

EIGHTY = {"windlass.dev/gpu-memory": "80Gi"}


def at(labels: dict[str, str]) -> extract.Node:
    return extract.node(build.node(extra={"windlass.dev/gpu": "1"}, labels=labels))


@pytest.mark.parametrize(
    ("device", "name", "labels", "form", "eighths"),
    [
        (run.Device(kind="gpu"), "gpu/0", {}, "whole", 8),
        (run.Device(kind="gpu", share="1/4"), "gpu/0:250", {}, "ratio", 2),
        (run.Device(kind="gpu", compute=50), "gpu/0:500", {}, "share", 4),
        (run.Device(kind="gpu", memory="10Gi"), "gpu/0:0:10240Mi", EIGHTY, "share", 1),
        (run.Device(kind="gpu", compute=50, memory="10Gi"), "gpu/0:500:10240Mi", EIGHTY,
         "share", 4),
        (run.Device(kind="gpu", memory="10Gi"), "gpu/0:0:10240Mi", {}, "share", 0),
        (run.Device(kind="gpu", memory="10Gi"), "gpu/0:0:10240Mi",
         {"windlass.dev/gpu-memory": "plenty"}, "share", 0),
    ],
)  # fmt: skip
def test_a_part_of_a_device_is_the_larger_of_its_compute_and_its_memory(
    device, name, labels, form, eighths
):
    owner = build.assigned(
        build.in_phase(build.a_run("job", build.role(devices=[device])), "Running"), devices=[name]
    )
    owner.status.held = [run.Held(attempt=0, role="worker", first=0, count=1, since=build.START)]
    told = extract.run_usage(owner, "q", lambda _: at(labels))
    (hold,) = (each for each in told.holds if each.device.name == "gpu/0")
    assert (hold.form, hold.part) == (form, model.WHOLE * eighths // 8)


@pytest.mark.parametrize(
    ("device", "eighths"),
    [
        (run.Device(kind="gpu"), 8),
        (run.Device(kind="gpu", compute=50), 4),
        (run.Device(kind="gpu", memory="10Gi"), 1),
        (run.Device(kind="gpu", compute=50, memory="70Gi"), 7),
    ],
)
def test_what_a_part_would_cost_is_the_larger_of_its_compute_and_its_memory(device, eighths):
    rate = 8 * price_list.NANO
    entries = (price_list.Entry("gpu", "", "", "", rate),)
    prices = price_list.Prices([price_list.Version("u", "p", "EUR", 0, None, entries)])
    spec = build.a_run("job", build.role(devices=[device])).spec
    told = estimate.estimate(spec, [at(EIGHTY)], prices, 1)
    assert told["perHourMicros"] == eighths * 3600 * 10**6
