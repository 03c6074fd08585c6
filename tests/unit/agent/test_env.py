import base64

import pytest

from windlass.agent import environment
from windlass.kinds import kubernetes, meta
from windlass.store.embedded.api import Api
from windlass.store.embedded.client import EmbeddedStore

FACTS = {"status.podIP": "10.0.0.1", "status.hostIP": "10.0.0.2"}


@pytest.fixture
async def store(tmp_path):
    api = await Api.open(tmp_path / "store.db")
    made = EmbeddedStore(api)
    await made.create(kubernetes.Namespace(metadata=meta.ObjectMeta(name="team")))
    name = meta.ObjectMeta(name="keys", namespace="team")
    secret = {"TOKEN": base64.b64encode(b"s3cret").decode()}
    await made.create(kubernetes.Secret(metadata=name, data=secret))
    await made.create(kubernetes.ConfigMap(metadata=name, data={"MODE": "fast", "TOKEN": "no"}))
    yield made
    await api.close()


def pod() -> kubernetes.Pod:
    return kubernetes.Pod(
        metadata=meta.ObjectMeta(
            name="p", namespace="team", uid="u1", labels={"app": "x"}, annotations={"note": "y"}
        ),
        spec=kubernetes.PodSpec(node_name="n1"),
    )


def secret_key(name: str, key: str, optional: bool | None = None) -> kubernetes.EnvVarSource:
    ref = kubernetes.KeyRef(name=name, key=key, optional=optional)
    return kubernetes.EnvVarSource(secret_key_ref=ref)


def config_key(name: str, key: str) -> kubernetes.EnvVarSource:
    return kubernetes.EnvVarSource(config_map_key_ref=kubernetes.KeyRef(name=name, key=key))


def field(path: str) -> kubernetes.EnvVarSource:
    return kubernetes.EnvVarSource(field_ref=kubernetes.FieldRef(field_path=path))


async def built(store, env=(), env_from=()) -> dict[str, str]:
    container = kubernetes.Container(name="c", env=list(env), env_from=list(env_from))
    found = await environment.build(environment.Sources(store, "team"), pod(), container, FACTS)
    return {k: v for k, v in found.items() if k not in environment.INHERITED}


async def test_plain_values_and_references_to_those_before(store):
    env = [
        kubernetes.EnvVar(name="A", value="1"),
        kubernetes.EnvVar(name="B", value="$(A)-$(C)-$$(A)"),
        kubernetes.EnvVar(name="C", value="3"),
    ]
    assert await built(store, env) == {"A": "1", "B": "1-$(C)-$(A)", "C": "3"}


async def test_everything_of_a_secret_and_a_config_later_ones_win_and_env_wins_over_all(store):
    sources = [
        kubernetes.EnvFrom(secret_ref=kubernetes.EnvFromRef(name="keys")),
        kubernetes.EnvFrom(prefix="C_", config_map_ref=kubernetes.EnvFromRef(name="keys")),
    ]
    env = [kubernetes.EnvVar(name="C_MODE", value="slow")]
    assert await built(store, env, sources) == {
        "TOKEN": "s3cret", "C_MODE": "slow", "C_TOKEN": "no",
    }  # fmt: skip


FIELDS = {
    "metadata.name": "p",
    "metadata.namespace": "team",
    "metadata.uid": "u1",
    "metadata.labels['app']": "x",
    "metadata.annotations['note']": "y",
    "metadata.labels['absent']": "",
    "spec.nodeName": "n1",
    "status.podIP": "10.0.0.1",
    "status.hostIP": "10.0.0.2",
}


@pytest.mark.parametrize(("path", "expected"), FIELDS.items())
async def test_fields_of_the_pod(store, path, expected):
    env = [kubernetes.EnvVar(name="X", value_from=field(path))]
    assert await built(store, env) == {"X": expected}


async def test_single_keys(store):
    env = [
        kubernetes.EnvVar(name="T", value_from=secret_key("keys", "TOKEN")),
        kubernetes.EnvVar(name="M", value_from=config_key("keys", "MODE")),
        kubernetes.EnvVar(name="O", value_from=secret_key("keys", "NOPE", optional=True)),
    ]
    assert await built(store, env) == {"T": "s3cret", "M": "fast"}


MISSING = {
    "a secret": (secret_key("none", "x"), 'Secret "none" has no key "x"'),
    "a key": (secret_key("keys", "x"), 'Secret "keys" has no key "x"'),
    "a config": (config_key("none", "x"), 'ConfigMap "none" has no key "x"'),
    "a field": (field("spec.magic"), "fieldRef spec.magic is not supported"),
}


@pytest.mark.parametrize(("source", "message"), MISSING.values(), ids=MISSING)
async def test_what_is_missing_is_named(store, source, message):
    with pytest.raises(environment.MissingError, match=message):
        await built(store, [kubernetes.EnvVar(name="X", value_from=source)])


async def test_a_missing_source_is_named_unless_it_is_optional(store):
    required = kubernetes.EnvFrom(secret_ref=kubernetes.EnvFromRef(name="none"))
    with pytest.raises(environment.MissingError, match='Secret "none" not found'):
        await built(store, env_from=[required])
    optional = kubernetes.EnvFrom(secret_ref=kubernetes.EnvFromRef(name="none", optional=True))
    assert await built(store, env_from=[optional]) == {}


async def test_the_agents_own_environment_stays_its_own(store, monkeypatch):
    monkeypatch.setenv("AGENT_PASSWORD", "hush")
    assert "AGENT_PASSWORD" not in await built(store)


def test_the_command_sees_the_variables():
    container = kubernetes.Container(name="c", command=["run", "$(A)"], args=["--b=$(B)"])
    assert environment.command(container, {"A": "1"}) == ["run", "1", "--b=$(B)"]
