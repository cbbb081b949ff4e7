"""Which level of isolation init's facts prove."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from skilljail.v1 import posture_pb2
from skilljaild.runs.level import IsolationLevel, level_of

from .facts import good_facts, gvisor_facts

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def with_kernel(facts: dict[str, Any], **kernel: object) -> dict[str, Any]:
    return facts | {"kernel": facts["kernel"] | kernel}


def test_the_levels_are_those_of_the_contract() -> None:
    for level in IsolationLevel:
        assert posture_pb2.IsolationLevel.Value(f"ISOLATION_LEVEL_{level.name}") == level.value


def test_a_container_on_linux_is_a_container() -> None:
    assert level_of(good_facts()) is IsolationLevel.CONTAINER


def test_gvisor_is_told_by_its_own_signs() -> None:
    assert level_of(gvisor_facts()) is IsolationLevel.GVISOR


@pytest.mark.parametrize("missing", ["/proc/sentry-meminfo", "/proc/cmdline", "uname"])
def test_one_sign_may_be_gone_in_another_gvisor(missing: str) -> None:
    signs = [sign for sign in gvisor_facts()["kernel"]["gvisor"] if sign != missing]
    assert level_of(with_kernel(gvisor_facts(), gvisor=signs)) is IsolationLevel.GVISOR
    assert level_of(with_kernel(gvisor_facts(), gvisor=signs[:1])) is IsolationLevel.CONTAINER
    assert level_of(with_kernel(gvisor_facts(), gvisor=signs[:1] * 3)) is IsolationLevel.CONTAINER


def test_no_sign_makes_gvisor_of_a_kernel_with_the_namespaces_or_the_masks_of_linux() -> None:
    claimed = gvisor_facts()["kernel"]
    assert level_of(good_facts() | {"kernel": claimed}) is IsolationLevel.CONTAINER
    only_mounts = good_facts() | {"kernel": claimed, "mounts": gvisor_facts()["mounts"]}
    only_namespaces = good_facts() | {"kernel": claimed, "namespaces": gvisor_facts()["namespaces"]}
    assert level_of(only_mounts) is IsolationLevel.CONTAINER
    assert level_of(only_namespaces) is IsolationLevel.CONTAINER
    one_of_linux = gvisor_facts()["namespaces"] | {"user": 4_026_531_837}
    assert level_of(gvisor_facts() | {"namespaces": one_of_linux}) is IsolationLevel.CONTAINER


def test_two_sandboxes_with_kernels_of_their_own_are_virtual_machines() -> None:
    own = good_facts()["kernel"]["boot_id"]
    assert level_of(good_facts(), other_boot_id=own) is IsolationLevel.CONTAINER
    assert level_of(good_facts(), other_boot_id="0b1ce1c5-0000-4000-8000-000000000002") is IsolationLevel.VM
    assert level_of(with_kernel(good_facts(), boot_id=None), other_boot_id="x") is IsolationLevel.CONTAINER
    assert level_of(gvisor_facts(), other_boot_id="x") is IsolationLevel.GVISOR


@given(st.sampled_from(["kernel", "namespaces", "mounts"]), JSON)
def test_broken_facts_prove_nothing(name: str, value: object) -> None:
    assert level_of(gvisor_facts() | {name: value}) is IsolationLevel.CONTAINER
