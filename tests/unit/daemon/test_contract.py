"""The daemon's closed sets of names and those of the contract are the same."""

import re
import typing

import pytest
import skilljail
from skilljail.v1 import limits_pb2, posture_pb2, run_pb2, script_runner_pb2
from skilljail_init.frames import SkipReason
from skilljaild.config import IsolationConfig
from skilljaild.egress.decision import EgressRefusal
from skilljaild.engines.finding import Severity
from skilljaild.errors import Reason
from skilljaild.interpreters import INTERPRETERS
from skilljaild.limits import Limits
from skilljaild.network import Network
from skilljaild.policy import AskedLimits
from skilljaild.runs.events import Outcome, Phases, RunState
from skilljaild.runs.level import IsolationLevel
from skilljaild.service import convert


def values(enum: object, prefix: str) -> dict[str, int]:
    """The values of a protobuf enum without prefix, and without the one that is never sent."""
    found = {name.removeprefix(prefix): number for name, number in enum.items()}  # type: ignore[attr-defined]
    assert found.pop("UNSPECIFIED") == 0
    return found


def test_reasons_are_those_of_the_contract() -> None:
    names = set(values(script_runner_pb2.ErrorReason, "ERROR_REASON_"))
    assert names == {reason.name for reason in Reason}
    assert {reason.value for reason in Reason} == {reason.name for reason in Reason}


def test_outcomes_are_those_of_the_contract() -> None:
    assert values(run_pb2.Outcome, "OUTCOME_") == {one.name: one.value for one in Outcome}


def test_states_are_those_of_the_contract_and_only_grow() -> None:
    assert values(run_pb2.RunState, "RUN_STATE_") == {one.name: int(one) for one in RunState}
    assert sorted(RunState) == list(RunState)


def test_skip_reasons_of_init_are_those_of_the_contract() -> None:
    names = {one.value.upper() for one in SkipReason}
    assert names == set(values(run_pb2.SkipReason, "SKIP_REASON_"))


def test_networks_are_those_of_the_contract_and_each_grants_more() -> None:
    assert values(run_pb2.Network, "NETWORK_") == {one.name: int(one) for one in Network}
    assert sorted(Network) == list(Network)


def test_egress_refusals_are_those_of_the_contract_and_of_the_client() -> None:
    names = set(values(run_pb2.EgressRefusal, "EGRESS_REFUSAL_"))
    assert names == {one.name for one in EgressRefusal}
    assert names == {one.value for one in skilljail.EgressRefusal}
    assert {one.value for one in skilljail.Network} == {one.name for one in Network}


def test_streams_have_the_numbers_of_the_contract() -> None:
    assert values(run_pb2.OutputStream, "OUTPUT_STREAM_") == {"STDOUT": 1, "STDERR": 2}


@pytest.mark.parametrize("kind", [Limits, AskedLimits])
def test_every_limit_of_the_contract_is_one_of_the_daemon(kind: type) -> None:
    messages = {field.name for field in limits_pb2.Limits.DESCRIPTOR.fields}
    renamed = {re.sub(r"_seconds$", "_time", name) for name in kind.__dataclass_fields__}  # type: ignore[attr-defined]
    assert renamed == messages
    assert {*convert._PLAIN_LIMITS, "wall_time", "cpu_time", "cpus"} == messages


def test_every_phase_of_the_contract_is_one_of_the_daemon() -> None:
    assert {field.name for field in run_pb2.Phases.DESCRIPTOR.fields} == set(Phases.__dataclass_fields__)


def test_every_field_of_a_request_is_read() -> None:
    """A field that is added to the contract and forgotten here would be ignored silently."""
    message = script_runner_pb2.RunScriptRequest()
    request = convert.run_request(message)
    fields = {field.name for field in message.DESCRIPTOR.fields}
    assert fields == set(request.__dataclass_fields__)


def test_interpreters_are_the_four_of_the_contract() -> None:
    assert list(INTERPRETERS) == ["python", "node", "bash", "pwsh"]
    suffixes = [suffix for one in INTERPRETERS.values() for suffix in one.suffixes]
    assert len(suffixes) == len(set(suffixes))


def test_isolation_levels_are_those_of_the_contract() -> None:
    found = {one.name: one.value for one in IsolationLevel}
    assert values(posture_pb2.IsolationLevel, "ISOLATION_LEVEL_") == found
    assert list(typing.get_args(IsolationConfig.model_fields["minimum"].annotation)) == [name.lower() for name in found]


def test_severities_are_those_of_the_contract() -> None:
    assert values(posture_pb2.Severity, "SEVERITY_") == {one.name: one.value for one in Severity}
