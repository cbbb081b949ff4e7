"""Versions with known holes. Facts with their source; a version that is not here is not promised to be good.

Distributions mend holes without a new number. What is found here is therefore what the number says; an operator who
knows better leaves `isolation.strict` off.
"""

import re

from skilljaild.engines.finding import Finding, Severity

__all__ = ["known_bad"]

_FIXED: dict[str, list[tuple[tuple[tuple[int, ...], ...], str, str]]] = {
    # product: [(first good version of each maintained line, what is wrong before, source)]
    "runc": [
        (
            ((1, 2, 8), (1, 3, 3)),
            "masked paths and console mounts can be used to escape",
            "CVE-2025-31133, -52565, -52881",
        ),
        (((1, 1, 12),), "a leaked descriptor lets a sandbox reach the host's files", "CVE-2024-21626"),
    ],
    "Docker": [
        (((29, 4, 3),), "AF_ALG sockets are open by default (our own profile closes them)", "CVE-2026-31431"),
        (
            ((29, 5, 1),),
            "copying to or from a container can run its programs and leave it (we never copy)",
            "CVE-2026-41567, -41568, -42306",
        ),
        (((29, 7, 0),), "unpacking an archive can leave its folder (we never have one unpacked)", "CVE-2026-17106"),
    ],
}


def known_bad(product: str, version: str, runtime: str, runtime_version: str) -> list[Finding]:
    """Each known hole of an engine and its runtime; what does not tell its version is said to do so."""
    found = []
    for name, number in ((product, version), (runtime, runtime_version)):
        if name in _FIXED and not _parts(number):
            message = "the engine does not tell its version; see to it that it is a current one"
            found.append(Finding(Severity.KNOWN_BAD, name, message))
            continue
        for good, hole, source in _FIXED.get(name, []):
            if not _is_good(_parts(number), good):
                wanted = " or ".join(".".join(map(str, one)) for one in good)
                message = f"{hole}; update to {wanted}"
                found.append(Finding(Severity.KNOWN_BAD, f"{name} {number}", message, source))
    return found


def _parts(version: str) -> tuple[int, ...]:
    match = re.match(r"\D*(\d+)\.(\d+)(?:\.(\d+))?", version)
    return tuple(int(part or 0) for part in match.groups()) if match else ()


def _is_good(version: tuple[int, ...], good: tuple[tuple[int, ...], ...]) -> bool:
    """At or above the first good version of its own line, or of a later line than any that is listed."""
    same_line = [one for one in good if one[:2] == version[:2]]
    return version >= same_line[0] if same_line else version > max(good)
