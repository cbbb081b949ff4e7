"""What a run's rules allow, before a name is resolved."""

from skilljail.v1 import run_pb2
from skilljaild.egress import EgressRefusal, EgressRules, HostPattern


def reason(rules: EgressRules, host: str, port: int = 443) -> EgressRefusal | None:
    """Why it is refused."""
    found = rules.refusal(host, port)
    return found[0] if found else None


def test_refusals_are_those_of_the_contract() -> None:
    names = {name.removeprefix("EGRESS_REFUSAL_") for name in run_pb2.EgressRefusal.keys()}  # noqa: SIM118
    assert {one.name for one in EgressRefusal} == names - {"UNSPECIFIED"}
    assert all(one.value == one.name.lower() for one in EgressRefusal)


def test_an_empty_allowlist_allows_nothing() -> None:
    rules = EgressRules("allowlist", ())
    assert reason(rules, "example.com") is EgressRefusal.HOST_NOT_ALLOWED
    assert "which is empty" in rules.refusal("example.com", 443)[1]  # type: ignore[index]


def test_an_allowlist_allows_its_hosts_on_their_ports() -> None:
    rules = EgressRules("allowlist", (HostPattern.parse("api.example.com"), HostPattern.parse("api.example.com:8443")))
    assert reason(rules, "api.example.com") is None
    assert reason(rules, "api.example.com", 8443) is None
    assert reason(rules, "api.example.com", 22) is EgressRefusal.PORT_NOT_ALLOWED
    assert "port 80, 443, 8443 only" in rules.refusal("api.example.com", 22)[1]  # type: ignore[index]
    assert reason(rules, "www.example.com") is EgressRefusal.HOST_NOT_ALLOWED
    assert "(api.example.com, api.example.com:8443)" in rules.refusal("www.example.com", 443)[1]  # type: ignore[index]


def test_open_allows_every_host_on_the_ports_of_the_web() -> None:
    rules = EgressRules("open", (HostPattern.parse("example.com:8443"),))
    assert reason(rules, "anything.example") is None
    assert reason(rules, "anything.example", 80) is None
    assert reason(rules, "anything.example", 8443) is EgressRefusal.PORT_NOT_ALLOWED
    assert reason(rules, "example.com", 8443) is None


def test_a_long_allowlist_is_shown_in_part() -> None:
    rules = EgressRules("allowlist", tuple(HostPattern.parse(f"h{number}.example") for number in range(1_000)))
    shown = rules.refusal("example.com", 443)[1]  # type: ignore[index]
    assert "h9.example and 990 more" in shown
    assert len(shown) < 400
