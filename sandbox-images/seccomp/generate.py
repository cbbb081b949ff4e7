#!/usr/bin/env python3
"""Makes profile.json: the container engines' default seccomp profile, less what removals.toml takes out.

    generate.py           writes profile.json and input.toml
    generate.py --check   fails when they are not what would be written

The default is the one that Debian's `golang-github-containers-common` installs. input.toml records which
version was used. `--check` on a machine that has another version, or none, can only compare hashes, and says
so; with --require-input it fails there, which is what CI asks for.

Standard library only.
"""

import argparse
import hashlib
import json
import pathlib
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["check", "generate", "main"]

HERE = pathlib.Path(__file__).parent
REMOVALS = HERE / "removals.toml"
PROFILE = HERE / "profile.json"
INPUT_RECORD = HERE / "input.toml"
DEFAULT_INPUT = pathlib.Path("/usr/share/containers/seccomp.json")
PACKAGE = "golang-github-containers-common"

ERRNO = {"SUCCESS": 0, "EPERM": 1, "ENOSYS": 38, "EAFNOSUPPORT": 97}
"""The same numbers on x86_64 and aarch64."""
ARCHITECTURES = ("SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64")
ARCHITECTURE_NAMES = {"amd64", "arm64"}
"""How the input's conditions name the same two."""
LOW_32_BITS = 0xFFFFFFFF
SOCKET_TYPE_MASK = 0xF
"""The other bits of a socket's type are flags."""
SOCK_RAW = 3

Rule = dict[str, Any]


class ProfileError(Exception):
    """The input or the removals do not fit. The message says what to change."""


def generate(default: Mapping[str, Any], removals: Mapping[str, Any]) -> dict[str, Any]:
    """The profile, as Docker and Podman read it. Raises ProfileError."""
    if default["defaultAction"] != "SCMP_ACT_ERRNO" or default["defaultErrnoRet"] != ERRNO["ENOSYS"]:
        raise ProfileError("the input no longer answers unknown calls with ENOSYS: review what that changes")
    rules = [rule for rule in default["syscalls"] if _applies(rule)]
    allowed, conditional, refused = _flatten(rules)
    for removal in removals["remove"]:
        for call in removal["calls"]:
            allowed.discard(call)
            conditional.pop(call, None)
            refused[call] = removal["errno"]
    narrowed: list[Rule] = []
    for call, narrowing in sorted(removals["narrow"].items()):
        if call not in allowed and call not in conditional:
            raise ProfileError(f"[narrow.{call}]: the input does not allow {call} at all; remove the table")
        allowed.discard(call)
        conditional.pop(call, None)
        narrowed += _narrow(call, narrowing)
    return {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": ERRNO["ENOSYS"],
        "archMap": [{"architecture": name, "subArchitectures": []} for name in ARCHITECTURES],
        "syscalls": [
            _allow(sorted(allowed)),
            *(rule for call in sorted(conditional) for rule in conditional[call]),
            *narrowed,
            *_refusals(refused),
        ],
    }


def _applies(rule: Mapping[str, Any]) -> bool:
    """Whether a rule holds for a process with no capability, on one of our architectures, on any kernel."""
    includes, excludes = rule.get("includes") or {}, rule.get("excludes") or {}
    if set(includes) - {"caps", "arches"} or set(excludes) - {"caps", "arches"}:
        raise ProfileError(f"the input has a condition that this program does not know: {includes} {excludes}")
    if includes.get("caps"):
        return False
    arches = includes.get("arches")
    return (not arches or bool(ARCHITECTURE_NAMES & set(arches))) and not (
        ARCHITECTURE_NAMES & set(excludes.get("arches") or ())
    )


def _flatten(rules: Iterable[Mapping[str, Any]]) -> tuple[set[str], dict[str, list[Rule]], dict[str, str]]:
    """The calls that are allowed, those that are allowed for some arguments, and the refused with their errno."""
    names = {number: name for name, number in ERRNO.items()}
    allowed: set[str] = set()
    conditional: dict[str, list[Rule]] = {}
    refused: dict[str, str] = {}
    for rule in rules:
        for call in rule["names"]:
            if rule["action"] == "SCMP_ACT_ALLOW" and not rule.get("args"):
                allowed.add(call)
            elif rule["action"] == "SCMP_ACT_ALLOW":
                conditional.setdefault(call, []).append(_allow([call], rule["args"]))
            elif rule["action"] == "SCMP_ACT_ERRNO" and not rule.get("args"):
                refused[call] = names[rule["errnoRet"]]
    # Where the input both allows and refuses a call, as it does for setns, the refusal holds.
    allowed -= set(refused)
    return allowed, {call: rules for call, rules in conditional.items() if call not in allowed}, refused


def _allow(calls: list[str], arguments: Iterable[Mapping[str, Any]] = ()) -> Rule:
    return {
        "names": calls,
        "action": "SCMP_ACT_ALLOW",
        "args": [_argument(a["index"], a["op"], a["value"], a["valueTwo"]) for a in arguments],
    }


def _refuse(calls: list[str], errno: str, *arguments: Rule) -> Rule:
    return {"names": calls, "action": "SCMP_ACT_ERRNO", "errnoRet": ERRNO[errno], "args": list(arguments)}


def _argument(index: int, op: str, value: int, value_two: int = 0) -> Rule:
    return {"index": index, "value": value, "valueTwo": value_two, "op": op}


def _masked(index: int, mask: int, value: int) -> Rule:
    """The argument, under the mask, is the value. What the mask leaves out is not looked at."""
    return _argument(index, "SCMP_CMP_MASKED_EQ", mask, value)


def _refusals(refused: Mapping[str, str]) -> list[Rule]:
    """One rule for each errno."""
    return [
        _refuse(sorted(call for call in refused if refused[call] == errno), errno)
        for errno in sorted(set(refused.values()))
    ]


def _narrow(call: str, narrowing: Mapping[str, Any]) -> list[Rule]:
    """The rules of one table of removals.toml. No allowing one overlaps a refusing one: libseccomp has no order."""
    if "refuse_bits" in narrowing:
        return _without_bits(call, narrowing["argument"], narrowing["refuse_bits"], narrowing["errno"])
    if "refuse_values" in narrowing:
        return _without_values(call, narrowing["argument"], narrowing["refuse_values"], narrowing["errno"])
    if "require_zero" in narrowing:
        return [_allow([call], [_masked(index, LOW_32_BITS, 0) for index in narrowing["require_zero"]])]
    return _sockets(call, narrowing["allow"], narrowing["errno"])


def _without_bits(call: str, index: int, bits: int, errno: str) -> list[Rule]:
    """Allowed while none of the bits is set."""
    single = [1 << bit for bit in range(64) if bits >> bit & 1]
    return [
        _allow([call], [_masked(index, bits, 0)]),
        *(_refuse([call], errno, _masked(index, bit, bit)) for bit in single),
    ]


def _without_values(call: str, index: int, values: list[int], errno: str) -> list[Rule]:
    """Allowed unless the argument's low 32 bits are one of the values.

    A filter can ask whether masked bits equal a value, and nothing in it can be negated, so the rules say the
    opposite: an allowed argument leaves the bits that the values share at some bit, or, sharing them all,
    differs further down. The high half is never looked at, because the kernel drops it (CVE-2019-10063).
    """
    rules = [_allow([call], [_masked(index, *prefix)]) for prefix in _complement(values)]
    return rules + [_refuse([call], errno, _masked(index, LOW_32_BITS, value)) for value in sorted(values)]


def _complement(values: Iterable[int]) -> list[tuple[int, int]]:
    """All 32-bit numbers except the values, as the fewest (mask, value) pairs that each fix a number's top bits."""
    pairs: list[tuple[int, int]] = []
    pending = [(31, 0, frozenset(values))]
    while pending:
        bit, prefix, inside = pending.pop()
        for digit in (0, 1):
            number = prefix | digit << bit
            rest = frozenset(value for value in inside if value >> bit == number >> bit)
            if not rest:
                pairs.append((LOW_32_BITS >> bit << bit, number))
            elif bit > 0:
                pending.append((bit - 1, number, rest))
    return sorted(pairs)


def _sockets(call: str, allow: list[dict[str, Any]], errno: str) -> list[Rule]:
    """Allowed for some domains, and in a domain for some types and protocols."""
    rules: list[Rule] = []
    for entry in allow:
        domain = _argument(0, "SCMP_CMP_EQ", entry["domain"])
        if "types" not in entry:
            rules.append(_allow([call], [domain]))
            continue
        for kind in entry["types"]:
            for protocol in entry["protocols"]:
                rest = [_masked(1, SOCKET_TYPE_MASK, kind), _argument(2, "SCMP_CMP_EQ", protocol)]
                rules.append(_allow([call], [domain, *rest]))
        rules.append(_refuse([call], "EPERM", domain, _masked(1, SOCKET_TYPE_MASK, SOCK_RAW)))
    domains = {entry["domain"] for entry in allow}
    others = [_argument(0, "SCMP_CMP_EQ", number) for number in range(max(domains)) if number not in domains]
    others.append(_argument(0, "SCMP_CMP_GT", max(domains)))
    return rules + [_refuse([call], errno, domain) for domain in others]


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def render(profile: Mapping[str, Any]) -> str:
    """The profile as text, one rule a line, names wrapped."""
    head = {key: value for key, value in profile.items() if key != "syscalls"}
    lines = [f'  "{key}": {json.dumps(value)},' for key, value in head.items()]
    rules = [_render_rule(rule) for rule in profile["syscalls"]]
    return "{\n" + "\n".join(lines) + '\n  "syscalls": [\n' + ",\n".join(rules) + "\n  ]\n}\n"


def _render_rule(rule: Rule) -> str:
    if len(rule["names"]) == 1:
        return f"    {json.dumps(rule)}"
    names = ",\n".join(f"      {json.dumps(name)}" for name in rule["names"])
    rest = ", ".join(f"{json.dumps(key)}: {json.dumps(value)}" for key, value in rule.items() if key != "names")
    return f'    {{"names": [\n{names}\n    ], {rest}}}'


def _package_version() -> str:
    command = ["dpkg-query", "--show", "--showformat=${Version}", PACKAGE]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603


def write(source: pathlib.Path, version: str | None = None) -> None:
    """Writes profile.json and input.toml. `version` is the package's, by default as dpkg knows it."""
    content = source.read_bytes()
    text = render(generate(json.loads(content), tomllib.loads(REMOVALS.read_text())))
    PROFILE.write_text(text)
    INPUT_RECORD.write_text(
        "# Which default profile.json was made from. Written by generate.py.\n"
        f'package = "{PACKAGE}"\n'
        f'version = "{version or _package_version()}"\n'
        f'path = "{DEFAULT_INPUT}"\n'
        f'sha256 = "{_sha256(content)}"\n'
        f'removals_sha256 = "{_sha256(REMOVALS.read_bytes())}"\n'
        f'profile_sha256 = "{_sha256(text.encode())}"\n'
    )


def check(source: pathlib.Path) -> tuple[list[str], str]:
    """What is stale, and what could not be proved (empty when everything was)."""
    record = tomllib.loads(INPUT_RECORD.read_text())
    stale = []
    if _sha256(REMOVALS.read_bytes()) != record["removals_sha256"]:
        stale.append("removals.toml was changed since profile.json was generated")
    if _sha256(PROFILE.read_bytes()) != record["profile_sha256"]:
        stale.append("profile.json was changed by hand")
    install = f"Debian's {PACKAGE} {record['version']}"
    if not source.is_file():
        return stale, f"{source} is not there: install {install} to have profile.json generated and compared"
    content = source.read_bytes()
    if _sha256(content) != record["sha256"]:
        return stale, f"{source} is not the file of {install} that profile.json was made from"
    text = render(generate(json.loads(content), tomllib.loads(REMOVALS.read_text())))
    if text != PROFILE.read_text():
        stale.append(f"profile.json is not what {source} and removals.toml give")
    return stale, ""


def main() -> int:
    """Runs the program; returns its exit status."""
    parser = argparse.ArgumentParser(description="Makes profile.json from the engines' default and removals.toml.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 when profile.json is stale")
    parser.add_argument(
        "--require-input",
        action="store_true",
        help="with --check: exit 1 also without the recorded input",
    )
    parser.add_argument(
        "--input", type=pathlib.Path, default=DEFAULT_INPUT, metavar="FILE", help="default: %(default)s"
    )
    parser.add_argument("--input-version", metavar="VERSION", help="the input's package version (default: ask dpkg)")
    arguments = parser.parse_args()
    if not arguments.check:
        write(arguments.input, arguments.input_version)
        return 0
    stale, unproven = check(arguments.input)
    for problem in stale:
        print(f"{problem}: run {pathlib.Path(__file__).name} and review the difference", file=sys.stderr)
    if unproven:
        print(f"Not proved that profile.json is fresh: {unproven}", file=sys.stderr)
    return int(bool(stale) or (arguments.require_input and bool(unproven)))


if __name__ == "__main__":
    sys.exit(main())
