"""Where a master can be found by a name, as users write it."""

import sys

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from gradwire_protocol import UsageError
from gradwire_udp.discovery.places import place_of
from gradwire_udp.discovery.srv import SrvPlace
from gradwire_udp.discovery.zookeeper import ZooKeeperPlace
from support.tiers import examples
from support.wording import naming


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("host:40123", None),
        ("zk://host/run", ZooKeeperPlace(("host:2181",), "/run")),
        ("ZK://a:1,[::1]:2/a/b/", ZooKeeperPlace(("a:1", "[::1]:2"), "/a/b")),
        ("dns+srv://_gradwire._udp.example.org", SrvPlace("_gradwire._udp.example.org")),
        ("dns+srv://10.0.0.2/_gw._udp.consul.", SrvPlace("_gw._udp.consul.", ("10.0.0.2", 53))),
        ("dns+srv://[::1]:8600/_gw._udp.x", SrvPlace("_gw._udp.x", ("::1", 8600))),
    ],
)
def test_a_place_is_read_from_its_text(text: str, place: object) -> None:
    found = place_of(text)

    assert found == place
    if found is not None:
        assert place_of(found.text) == found


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("http://host:1", naming("HTTP", "host:port", "zk://host:2181/path")),
        ("zk://host:2181", naming("zk://host:2181", "path", 255)),
        ("zk://host:2181/", naming("path")),
        ("zk://host:2181//run", naming("path")),
        ("zk://host:2181/a/../b", naming("path")),
        ("zk://host:2181/zookeeper/quota", naming("/zookeeper")),
        (f"zk://host/{'x' * 256}", naming(255)),
        ("zk://host/a\x00b", naming("path")),
        ("zk:///run", naming("host")),
        ("zk://host:99999/run", naming(99999, 65535)),
        (f"zk://{','.join(['h'] * 17)}/run", naming(17, 16)),
        ("dns+srv://", naming("SRV")),
        ("dns+srv://a..b", naming("SRV")),
        (f"dns+srv://{'x' * 64}.org", naming("SRV")),
        (f"dns+srv://{'x.' * 130}org", naming(253)),
        ("dns+srv://a\\999.test", naming("SRV")),
        ("dns+srv://10.0.0.2:x/name", naming("port", "'x'")),
        ("dns+srv://server/name", naming("'server'", "IP address")),
    ],
)
def test_a_text_that_is_no_place_is_refused(text: str, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        place_of(text)


def test_a_password_in_an_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(UsageError, match=naming("--announce-auth-file")) as refused:
        place_of("zk://user:secret@host:2181/run")

    assert "secret" not in str(refused.value)


@hypothesis_settings(max_examples=examples(300))
@given(scheme=st.sampled_from(["zk", "dns+srv"]), rest=st.text(max_size=40))
def test_every_text_is_a_place_or_refused(scheme: str, rest: str) -> None:
    try:
        found = place_of(f"{scheme}://{rest}")
    except UsageError:
        return
    assert found is not None
    assert found.text.startswith(f"{scheme}://")
    assert found.text.isprintable()


@pytest.mark.parametrize(
    ("text", "missing", "named"),
    [
        ("zk://127.0.0.1:1/run", "kazoo", naming("pip install 'gradwire[zookeeper]'")),
        ("dns+srv://a.b", "dns.resolver", naming("pip install 'gradwire[dns]'")),
    ],
)
def test_a_package_that_is_missing_is_named(
    text: str, missing: str, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    place = place_of(text)
    assert place is not None

    with pytest.raises(UsageError, match=named):
        place.open()
