"""What a run may reach of what it asks for."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from skilljaild.egress.hosts import HostPattern
from skilljaild.errors import Reason, Refusal
from skilljaild.network import ALLOWED_HOSTS_MAX, Network, NetworkCeiling, effective_network


def ceiling(network: Network, *hosts: str) -> NetworkCeiling:
    """What an operator grants."""
    return NetworkCeiling(network, tuple(HostPattern.parse(one, every=True) for one in hosts))


GRANTED = ceiling(Network.ALLOWLIST, "*.example.com", "api.example.org:8443")
OPEN = ceiling(Network.OPEN, "odd.example.com:22")


def refusal(asked: int, hosts: tuple[str, ...] = (), within: NetworkCeiling = GRANTED) -> Refusal:
    """Why it is refused."""
    with pytest.raises(Refusal) as caught:
        effective_network(asked, hosts, within)
    return caught.value


@pytest.mark.parametrize("within", [NetworkCeiling(), GRANTED, OPEN])
@pytest.mark.parametrize("asked", [0, 1])
def test_unset_and_none_are_none_whatever_the_operator_grants(asked: int, within: NetworkCeiling) -> None:
    assert effective_network(asked, (), within) == (Network.NONE, ())


def test_hosts_are_told_in_the_form_in_which_they_are_compared_and_once() -> None:
    network, hosts = effective_network(2, ("API.Example.com.", "api.example.com", "*.B.example.com"), GRANTED)
    assert (network, [str(one) for one in hosts]) == (Network.ALLOWLIST, ["api.example.com", "*.b.example.com"])


def test_an_empty_list_is_a_list() -> None:
    assert effective_network(2, (), ceiling(Network.ALLOWLIST)) == (Network.ALLOWLIST, ())


@pytest.mark.parametrize(
    ("asked", "hosts", "field", "words"),
    [
        (4, (), "network", "4 is no network that this daemon knows; it knows NETWORK_NONE, NETWORK_ALLOWLIST, NET"),
        (-1, (), "network", "-1 is no network"),
        (0, ("a.com",), "allowed_hosts", "no network asked for; ask for NETWORK_ALLOWLIST, or leave the hosts"),
        (1, ("a.com",), "allowed_hosts", "no network asked for"),
        (3, ("a.com",), "allowed_hosts", "NETWORK_OPEN reaches every host; leave the hosts out"),
        (2, ("*",), "allowed_hosts", "'*' is no list of hosts; ask for NETWORK_OPEN"),
        (2, ("a.example.com", "http://a.com"), "allowed_hosts", "'http://a.com': "),
        (2, ("10.0.0.1",), "allowed_hosts", "'10.0.0.1': an IP address is no host name"),
        (2, ("[::1]",), "allowed_hosts", "'[::1]': an IPv6 address"),
        (2, ("",), "allowed_hosts", "'': the host name is empty"),
        (2, ("a.*.com",), "allowed_hosts", "'a.*.com': '*' can only be the whole first part"),
        (2, ("a.com:0",), "allowed_hosts", "'a.com:0': what stands behind the colon is no port"),
        (2, ("a\nb.com",), "allowed_hosts", "'a\\nb.com': "),
        (2, ("a.example.com",) * (ALLOWED_HOSTS_MAX + 1), "allowed_hosts", "257 hosts, at most 256"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_mend(
    asked: int, hosts: tuple[str, ...], field: str, words: str
) -> None:
    found = refusal(asked, hosts)
    assert (found.reason, found.field) == (Reason.NETWORK_INVALID, field)
    assert found.message.startswith(f"{field}: ")
    assert words in found.message


@pytest.mark.parametrize(
    ("asked", "within"), [(2, NetworkCeiling()), (3, NetworkCeiling()), (3, GRANTED), (3, ceiling(Network.NONE, "*"))]
)
def test_a_network_above_the_ceiling_is_refused_with_the_setting_that_mends_it(
    asked: int, within: NetworkCeiling
) -> None:
    found = refusal(asked, (), within)
    name = Network(asked).name
    assert found.reason is Reason.NETWORK_NOT_ALLOWED
    assert found.metadata == {"network": name, "ceiling": within.network.name}
    assert f"set network.ceiling to {name.lower()}" in found.message


@pytest.mark.parametrize(
    "host",
    [
        "example.com",
        "evil-example.com",
        "api.example.com.evil.net",
        "*.example.org",
        "api.example.org",
        "a.example.com:8443",
    ],
)
def test_a_host_that_the_operator_does_not_grant_is_named(host: str) -> None:
    found = refusal(2, ("ok.example.com", host))
    assert (found.reason, found.field, found.metadata) == (
        Reason.NETWORK_NOT_ALLOWED,
        "allowed_hosts",
        {"host": host},
    )
    assert f"'{host}'" in found.message
    assert "network.allowed_hosts" in found.message


def test_under_an_open_ceiling_a_list_may_name_every_host_and_the_ports_that_the_operator_added() -> None:
    hosts = ("anything.net", "*.evil.net", "odd.example.com:22", "a.com:443")
    assert [str(one) for one in effective_network(2, hosts, OPEN)[1]] == list(hosts)
    assert refusal(2, ("anything.net:22",), OPEN).metadata == {"host": "anything.net:22"}
    assert [str(one) for one in OPEN.nameable] == ["odd.example.com:22", "*"]


@given(
    st.integers(-5, 5), st.lists(st.text(max_size=12), max_size=4), st.sampled_from([NetworkCeiling(), GRANTED, OPEN])
)
def test_whatever_is_asked_for_is_within_the_ceiling_or_refused(
    asked: int, hosts: list[str], within: NetworkCeiling
) -> None:
    try:
        network, allowed = effective_network(asked, tuple(hosts), within)
    except Refusal as found:
        assert found.reason in {Reason.NETWORK_INVALID, Reason.NETWORK_NOT_ALLOWED}  # noqa: PT017
        return
    assert network <= within.network
    assert not allowed or network is Network.ALLOWLIST
    assert all(any(one.covers(pattern) for one in within.nameable) for pattern in allowed)
