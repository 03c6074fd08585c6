import pytest

from windlass.telemetry import prometheus


def test_renders_counters_and_gauges_with_escaped_labels():
    registry = prometheus.Registry()
    registry.counter("hits_total", "Hits.\nAll of them.", ["path"]).add('a"b\\c\nd')
    registry.gauge("depth", "Depth.").set(to=2.5)
    assert registry.render().splitlines() == [
        "# HELP depth Depth.",
        "# TYPE depth gauge",
        "depth 2.5",
        "# HELP hits_total Hits.\\nAll of them.",
        "# TYPE hits_total counter",
        'hits_total{path="a\\"b\\\\c\\nd"} 1',
    ]


def test_histogram_buckets_are_cumulative_and_upper_bounds_inclusive():
    registry = prometheus.Registry()
    took = registry.histogram("took_seconds", "Took.", ["who"], buckets=(0.1, 1.0))
    for value in (0.05, 0.1, 0.5, 7.0):
        took.observe("x", value=value)
    assert registry.render().splitlines()[2:] == [
        'took_seconds_bucket{who="x",le="0.1"} 2',
        'took_seconds_bucket{who="x",le="1"} 3',
        'took_seconds_bucket{who="x",le="+Inf"} 4',
        'took_seconds_sum{who="x"} 7.65',
        'took_seconds_count{who="x"} 4',
    ]


def test_asking_twice_for_a_name_gives_the_same_metric():
    registry = prometheus.Registry()
    registry.counter("n_total", "N.").add()
    registry.counter("n_total", "N.").add()
    assert registry.counter("n_total", "N.").value() == 2


def test_counters_never_go_down():
    with pytest.raises(ValueError, match="cannot go down"):
        prometheus.Registry().counter("n_total", "N.").add(by=-1)


def test_wrong_number_of_labels_is_refused():
    with pytest.raises(ValueError, match="has the labels"):
        prometheus.Registry().gauge("g", "G.", ["a"]).set("x", "y", to=1)
