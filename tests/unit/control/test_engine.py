import pytest

from windlass.control import engine
from windlass.kinds import kubernetes, meta


def config_map(**data: str) -> kubernetes.ConfigMap:
    return kubernetes.ConfigMap(metadata=meta.ObjectMeta(name="engine"), data=data)


def test_without_a_word_it_is_kubernetes():
    assert engine.Engine.read(None) == engine.Engine()
    assert engine.Engine.read(config_map(other="x")).images


def test_what_is_written_is_read_back():
    embedded = engine.Engine(
        images=False, addresses="node", ports=(20000, 20100), server="https://127.0.0.1:1",
        isolation="user", claims=False, heartbeats=True,
    )  # fmt: skip
    assert engine.Engine.read(config_map(**embedded.data())) == embedded


@pytest.mark.parametrize(
    ("key", "value"),
    [("images", "yes"), ("addresses", "host"), ("ports", "9-1"), ("ports", "x"), ("claims", "")],
)
def test_what_cannot_be_is_refused_with_key_and_remedy(key, value):
    with pytest.raises(engine.EngineError, match=f"{key} is .*kubectl edit configmap engine"):
        engine.Engine.read(config_map(**{key: value}))
