"""`skilljaild doctor`: what this host has, what it lacks, and what to do about each."""

import argparse
import asyncio
import dataclasses
import json
import os
import sys
import time
from typing import Any

from skilljaild.catalogue import Catalogue, CatalogueEntry
from skilljaild.cli.flags import add_config_flags, config_of
from skilljaild.config import Config, ConfigError
from skilljaild.daemon import make_engine, make_examiner
from skilljaild.engines.base import Engine, EngineError, EngineReport
from skilljaild.engines.floor import FloorError, container_floor
from skilljaild.errors import Refusal
from skilljaild.interpreters import INTERPRETERS
from skilljaild.log import set_up_log
from skilljaild.posture.posture import Posture
from skilljaild.posture.self_test import ImageTest
from skilljaild.runs.admission import Admission
from skilljaild.secrets.keeper import SecretKeeper, SecretsError
from skilljaild.service.server import ListenError, check_tls_files

__all__ = ["add_parser"]

DESCRIPTION = """\
Looks at what the daemon needs on this host, one line for each thing: whether it is there and, where it is not, what
to do. It makes a sandbox of each image, tries its walls from inside, as `skilljaild serve` does when it starts, and
destroys it again. Nothing else is changed, and no script of anybody is run. No daemon need be running.
"""

EPILOG = """\
exit status:
  0  everything that is needed is there (warnings allowed)
  1  something that is needed is missing, or does not hold: `skilljaild serve` would refuse to start
  2  the configuration is wrong
"""

OWNER = "doctor"
"""In the label of its sandboxes. They are not the daemon's, whose reaper would take them for orphans."""

MARKS = {"ok": "ok  ", "warning": "warn", "missing": "MISS"}


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
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
    set_up_log(config.log)
    lines = asyncio.run(_examine(config))
    if options.json:
        print(json.dumps([dataclasses.asdict(one) for one in lines], indent=2))
    else:
        for one in lines:
            print(f"{MARKS[one.state]}  {one.thing}: {one.detail}")
    return 1 if any(one.state == "missing" for one in lines) else 0


async def _examine(config: Config) -> list[Line]:
    lines = [_floor(), _state_directory(config), *_tls(config), *_secrets(config)]
    engine = make_engine(config.engine)
    try:
        report = await engine.probe()
        lines += _engine(report)
        if not report.missing:
            lines += await _sandboxes(config, engine, report)
    except EngineError as error:
        lines.append(Line("missing", "engine", str(error)))
    except Refusal as refusal:  # the engine answered before, and does not any more
        lines.append(Line("missing", "engine", refusal.message))
    finally:
        await engine.close()
    return lines


def _floor() -> Line:
    try:
        container_floor()
    except FloorError as error:
        return Line("missing", "container floor", str(error))
    return Line("ok", "container floor", "floor.toml and the seccomp profile are there")


def _state_directory(config: Config) -> Line:
    directory = config.state_directory
    existing = next((one for one in (directory, *directory.parents) if one.exists()), directory)
    if os.access(existing, os.W_OK | os.X_OK):
        return Line("ok", "state directory", str(directory))
    return Line("missing", "state directory", f"{existing} cannot be written; name another with --state-dir")


def _tls(config: Config) -> list[Line]:
    if config.tls is None:
        return []
    try:
        check_tls_files(config.tls)
    except ListenError as error:
        return [Line("missing", "TLS", str(error))]
    return [Line("ok", "TLS", "certificate, key and client CA can be used")]


def _secrets(config: Config) -> list[Line]:
    """Whether each source can be used as it is now. A value is looked at only where `serve` does so."""
    if not config.secrets:
        return []
    try:
        keeper = SecretKeeper(config.secrets)
    except SecretsError as error:
        return [Line("missing", "secrets", str(error))]
    if keeper.absent:
        return [Line("warning", "secrets", f"{name}: {file} is not there yet") for name, file in keeper.absent.items()]
    return [Line("ok", "secrets", f"{len(config.secrets)}, and nothing is wrong with their sources")]


def _engine(report: EngineReport) -> list[Line]:
    version = f"{report.runtime} {report.runtime_version}".strip()
    about = f"{report.product} {report.version}, {version}, kernel {report.kernel}, cgroup v{report.cgroup_version}"
    return [
        Line("ok", "engine", about),
        *(Line("missing", "engine control", one) for one in report.missing),
    ]


async def _sandboxes(config: Config, engine: Engine, report: EngineReport) -> list[Line]:
    """What the images are, and what is seen from inside of them."""
    catalogue = Catalogue(config.images, engine)
    lines = [_interpreter(name, await catalogue.entry(name)) for name in INTERPRETERS]
    if all(one.state == "warning" for one in lines):
        lines.append(Line("missing", "interpreters", "there is no image at all; run `skilljail images build`"))
    await _sweep(engine)
    admission = Admission(config.admission.concurrent_runs, 0)
    examiner = make_examiner(config, engine, OWNER, catalogue, admission)
    return lines + _posture(await examiner.at_start(report, config.admission.concurrent_runs))


def _interpreter(name: str, entry: CatalogueEntry) -> Line:
    if entry.image is None:
        return Line("warning", f"interpreter {name}", entry.fault)
    return Line("ok", f"interpreter {name}", f"{entry.version} in {entry.reference}")


async def _sweep(engine: Engine) -> None:
    """Destroys what a doctor that was killed has left. One that is under way keeps its sandboxes."""
    for sandbox in await engine.list_owned(OWNER):
        if sandbox.deadline < time.time():
            await engine.destroy(sandbox.sandbox_id)


def _posture(posture: Posture) -> list[Line]:
    """What holds, why the daemon would not start, and what an operator should know."""
    faults = posture.faults
    known = posture.findings if posture.images else posture.report.findings  # that there is no image is told already
    return [
        *(_image(test) for test in posture.images if test.passed),
        *(Line("missing", "posture", fault) for fault in faults),
        *(Line("warning", "posture", one.text) for one in known if not any(one.text in fault for fault in faults)),
    ]


def _image(test: ImageTest) -> Line:
    level = test.level.name.lower() if test.level else "unproven"
    detail = f"{len(test.controls)} controls hold in its sandbox, isolation {level}, {test.seconds:.1f} s"
    return Line("ok", f"self-test {test.interpreter}", detail)
