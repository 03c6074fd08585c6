import base64

import pytest

from windlass.agent.pods import env as pods_env
from windlass.kinds.types import core, meta
from windlass.store.embedded.api import Api
from windlass.store.embedded.client import EmbeddedStore

FACTS = {"status.podIP": "10.0.0.1", "status.hostIP": "10.0.0.2"}


@pytest.fixture
async def store(tmp_path):
    api = await Api.open(tmp_path / "store.db")
    made = EmbeddedStore(api)
    await made.create(core.Namespace(metadata=meta.ObjectMeta(name="team")))
    name = meta.ObjectMeta(name="keys", namespace="team")
    secret = {"TOKEN": base64.b64encode(b"s3cret").decode()}
    await made.create(core.Secret(metadata=name, data=secret))
    await made.create(core.ConfigMap(metadata=name, data={"MODE": "fast", "TOKEN": "no"}))
    yield made
    await api.close()


def pod() -> core.Pod:
    return core.Pod(
        metadata=meta.ObjectMeta(
            name="p", namespace="team", uid="u1", labels={"app": "x"}, annotations={"note": "y"}
        ),
        spec=core.PodSpec(node_name="n1"),
    )


def secret_key(name: str, key: str, optional: bool | None = None) -> core.EnvVarSource:
    ref = core.KeyRef(name=name, key=key, optional=optional)
    return core.EnvVarSource(secret_key_ref=ref)


def config_key(name: str, key: str) -> core.EnvVarSource:
    return core.EnvVarSource(config_map_key_ref=core.KeyRef(name=name, key=key))


def field(path: str) -> core.EnvVarSource:
    return core.EnvVarSource(field_ref=core.FieldRef(field_path=path))


async def built(store, env=(), env_from=()) -> dict[str, str]:
    container = core.Container(name="c", env=list(env), env_from=list(env_from))
    found = await pods_env.build(pods_env.Sources(store, "team"), pod(), container, FACTS)
    return {k: v for k, v in found.items() if k not in pods_env.INHERITED}


async def test_plain_values_and_references_to_those_before(store):
    env = [
        core.EnvVar(name="A", value="1"),
        core.EnvVar(name="B", value="$(A)-$(C)-$$(A)"),
        core.EnvVar(name="C", value="3"),
    ]
    assert await built(store, env) == {"A": "1", "B": "1-$(C)-$(A)", "C": "3"}


async def test_everything_of_a_secret_and_a_config_later_ones_win_and_env_wins_over_all(store):
    sources = [
        core.EnvFrom(secret_ref=core.EnvFromRef(name="keys")),
        core.EnvFrom(prefix="C_", config_map_ref=core.EnvFromRef(name="keys")),
    ]
    env = [core.EnvVar(name="C_MODE", value="slow")]
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
    env = [core.EnvVar(name="X", value_from=field(path))]
    assert await built(store, env) == {"X": expected}


async def test_single_keys(store):
    env = [
        core.EnvVar(name="T", value_from=secret_key("keys", "TOKEN")),
        core.EnvVar(name="M", value_from=config_key("keys", "MODE")),
        core.EnvVar(name="O", value_from=secret_key("keys", "NOPE", optional=True)),
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
    with pytest.raises(pods_env.MissingError, match=message):
        await built(store, [core.EnvVar(name="X", value_from=source)])


async def test_a_missing_source_is_named_unless_it_is_optional(store):
    required = core.EnvFrom(secret_ref=core.EnvFromRef(name="none"))
    with pytest.raises(pods_env.MissingError, match='Secret "none" not found'):
        await built(store, env_from=[required])
    optional = core.EnvFrom(secret_ref=core.EnvFromRef(name="none", optional=True))
    assert await built(store, env_from=[optional]) == {}


async def test_the_agents_own_environment_stays_its_own(store, monkeypatch):
    monkeypatch.setenv("AGENT_PASSWORD", "hush")
    assert "AGENT_PASSWORD" not in await built(store)


def test_the_command_sees_the_variables():
    container = core.Container(name="c", command=["run", "$(A)"], args=["--b=$(B)"])
    assert pods_env.command(container, {"A": "1"}) == ["run", "1", "--b=$(B)"]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("https://me:pw@index/simple", "https://index/simple"),
        ("https://token@a/s http://u:p@b/t https://c/u", "https://a/s http://b/t https://c/u"),
        ("own=https://u:p%40x@index/simple", "own=https://index/simple"),
        ("https://u:p@ss@index/simple", "https://index/simple"),
        ("http://proxy:3128", "http://proxy:3128"),
        ("https://index/simple/@scope/x", "https://index/simple/@scope/x"),
        ("/usr/bin:/bin", "/usr/bin:/bin"),
    ],
)
def test_urls_lose_their_users_and_passwords(given, kept):
    assert pods_env.without_credentials({"UV_INDEX_URL": given}) == {"UV_INDEX_URL": kept}


async def test_passwords_of_the_owner_do_not_reach_pods_of_teams(node, monkeypatch):
    monkeypatch.setenv("UV_INDEX_URL", "https://me:hush@index/simple")
    monkeypatch.setenv("HTTPS_PROXY", "http://me:hush@proxy:3128")
    await node.create("env")
    said = node.text(await node.phase("Succeeded"))
    assert "UV_INDEX_URL=https://index/simple" in said
    assert "hush" not in said
