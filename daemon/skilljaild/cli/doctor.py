"""`skilljaild doctor`: what this host has, what it lacks, and what to do about each."""

import argparse
import asyncio
import dataclasses
import json
import os
import sys
from typing import Any

from skilljaild.catalogue import Catalogue
from skilljaild.cli.flags import add_config_flags, config_of
from skilljaild.config import Config, ConfigError
from skilljaild.daemon import make_engine
from skilljaild.engines.base import Engine, EngineError
from skilljaild.engines.floor import FloorError, container_floor
from skilljaild.errors import Refusal
from skilljaild.interpreters import INTERPRETERS

__all__ = ["add_parser"]

DESCRIPTION = """\
Looks at what the daemon needs on this host, one line for each thing: whether it is there and, where it is not, what
to do. Nothing is changed and no script is run.
"""

EPILOG = """\
exit status:
  0  everything that is needed is there (warnings allowed)
  1  something that is needed is missing
  2  the configuration is wrong
"""

MARKS = {"ok": "ok  ", "warning": "warn", "missing": "MISS"}


@dataclasses.dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report. `state`: ok, warning or missing."""

    state: str
    thing: str
    detail: str


def add_parser(commands: Any) -> None:
    """Adds the command to what `add_subparsers` returned."""
    parser = commands.add_parser(
        "doctor",
        help="see what this host has and what it lacks",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="one JSON array instead of lines")
    add_config_flags(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    try:
        config = config_of(options)
    except (ConfigError, argparse.ArgumentTypeError) as error:
        print(f"skilljaild: {error}", file=sys.stderr)
        return 2
    findings = asyncio.run(_examine(config))
    if options.json:
        print(json.dumps([dataclasses.asdict(one) for one in findings], indent=2))
    else:
        for one in findings:
            print(f"{MARKS[one.state]}  {one.thing}: {one.detail}")
    return 1 if any(one.state == "missing" for one in findings) else 0


async def _examine(config: Config) -> list[Finding]:
    findings = [_floor(), _state_directory(config)]
    engine = make_engine(config.engine)
    try:
        findings += await _engine(engine)
        if all(one.state != "missing" for one in findings if one.thing == "engine"):
            findings += await _interpreters(config, engine)
    finally:
        await engine.close()
    return findings


def _floor() -> Finding:
    try:
        container_floor()
    except FloorError as error:
        return Finding("missing", "container floor", str(error))
    return Finding("ok", "container floor", "floor.toml and the seccomp profile are there")


def _state_directory(config: Config) -> Finding:
    directory = config.state_directory
    existing = next((one for one in (directory, *directory.parents) if one.exists()), directory)
    if os.access(existing, os.W_OK | os.X_OK):
        return Finding("ok", "state directory", str(directory))
    return Finding("missing", "state directory", f"{existing} cannot be written; name another with --state-dir")


async def _engine(engine: Engine) -> list[Finding]:
    try:
        report = await engine.probe()
    except EngineError as error:
        return [Finding("missing", "engine", str(error))]
    version = f"{report.runtime} {report.runtime_version}".strip()
    about = f"{report.product} {report.version}, {version}, kernel {report.kernel}, cgroup v{report.cgroup_version}"
    return [
        Finding("ok", "engine", about),
        *(Finding("missing", "engine control", one) for one in report.missing),
        *(Finding("warning", "posture", one) for one in report.warnings),
    ]


async def _interpreters(config: Config, engine: Engine) -> list[Finding]:
    catalogue = Catalogue(config.images, engine)
    findings: list[Finding] = []
    for name in INTERPRETERS:
        try:
            entry = await catalogue.entry(name)
        except Refusal as refusal:  # the engine answered before, and does not any more
            return [*findings, Finding("missing", "engine", refusal.message)]
        if entry.image is None:
            findings.append(Finding("warning", f"interpreter {name}", entry.fault))
        else:
            findings.append(Finding("ok", f"interpreter {name}", f"{entry.version} in {entry.reference}"))
    if all(one.state == "warning" for one in findings):
        findings.append(Finding("missing", "interpreters", "there is no image at all; run `skilljail images build`"))
    return findings
