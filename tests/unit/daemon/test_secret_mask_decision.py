"""Secrets taken out of what is told of connections."""

import datetime

import pytest
from skilljaild.egress.decision import EgressRefusal, Refused
from skilljaild.secrets.mask_decision import DecisionMask

MASK = DecisionMask([b"Canary-0001/tail", b"second-value"])


@pytest.mark.parametrize(
    ("host", "told"),
    [
        ("api.example.com", "api.example.com"),
        ("second-value.example.com", "***.example.com"),
        ("SECOND-Value.Example.com", "***.Example.com"),
        ("x.second-valuesecond-value", "x.******"),
        ("canary-0001", "***"),  # it was cut at the slash
        ("x.cana", "x.***"),
        ("x.can", "x.can"),
        ("canary-0001.example.com", "canary-0001.example.com"),
        ("", ""),
    ],
)
def test_values_are_masked_in_host_and_message(host: str, told: str) -> None:
    decision = Refused(EgressRefusal.HOST_NOT_ALLOWED, host, 80, "no host is second-value or café").decision()
    found = MASK.masked(decision)
    assert found.host == told
    to = f" to {told}:80" if told else ""
    assert found.message == f"the connection{to} was refused: no host is *** or café"
    assert (found.time, found.port, found.refusal) == (decision.time, 80, EgressRefusal.HOST_NOT_ALLOWED)
    assert isinstance(found.time, datetime.datetime)
