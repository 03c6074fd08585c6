import pytest

from windlass.control.model import capabilities
from windlass.kinds.types import core, meta


def config_map(**data: str) -> core.ConfigMap:
    return core.ConfigMap(metadata=meta.ObjectMeta(name="engine"), data=data)


def test_without_a_word_it_is_kubernetes():
    assert capabilities.Engine.read(None) == capabilities.Engine()
    assert capabilities.Engine.read(config_map(other="x")).images


def test_what_is_written_is_read_back():
    embedded = capabilities.Engine(
        images=False, addresses="node", ports=(20000, 20100), server="https://127.0.0.1:1",
        isolation="user", claims=False, heartbeats=True, other_schedulers=False,
    )  # fmt: skip
    assert capabilities.Engine.read(config_map(**embedded.data())) == embedded


@pytest.mark.parametrize(
    ("key", "value"),
    [("images", "yes"), ("addresses", "host"), ("ports", "9-1"), ("ports", "x"), ("claims", "")],
)
def test_what_cannot_be_is_refused_with_key_and_remedy(key, value):
    with pytest.raises(capabilities.EngineError, match=f"{key} is .*kubectl edit configmap engine"):
        capabilities.Engine.read(config_map(**{key: value}))
