"""What to run: a request as it came, and the same after every check."""

import dataclasses
import functools
import re

from skilljaild.bundles.bundle import MANIFEST_BYTES_MAX, Bundle, BundleFile, parse_manifest
from skilljaild.bundles.digest import digest_of, is_digest
from skilljaild.bundles.store import BlobStore
from skilljaild.config import BundleConfig
from skilljaild.errors import Reason, Refusal, Violation
from skilljaild.interpreters import SHEBANG_BYTES, choose
from skilljaild.limits import Limits
from skilljaild.network import Network, NetworkCeiling, effective_network
from skilljaild.paths import check_path, shown
from skilljaild.policy import (
    SANDBOX_ENVIRONMENT,
    AskedLimits,
    check_arguments,
    check_labels,
    effective_limits,
    environment,
)
from skilljaild.runs.events import EffectivePolicy
from skilljaild.runs.granted import check_first_line, check_secrets
from skilljaild.secrets.keeper import SecretKeeper

__all__ = ["InputFile", "Order", "OrderDesk", "RunRequest"]

STDIN_BYTES_MAX = 4 * 1024 * 1024
INPUT_FILES_MAX = 256
INPUT_BYTES_MAX = 4 * 1024 * 1024
PATTERNS_MAX = 64
PATTERN_BYTES_MAX = 1_024
MISSING_NAMED_MAX = 1_000
ENTRY_BYTES = 500
"""What an entry of a bundle takes in memory besides its path: a digest, and Python's own for each object."""


@dataclasses.dataclass(frozen=True, slots=True)
class InputFile:
    """A file that comes with a request: its `content`, or the `digest` of a blob."""

    path: str
    content: bytes | None
    digest: str
    executable: bool


@dataclasses.dataclass(frozen=True, slots=True)
class RunRequest:
    """`RunScriptRequest` as plain data, unchecked."""

    request_id: str
    bundle_digest: str
    script_path: str
    argv: tuple[str, ...]
    env: dict[str, str]
    stdin: bytes
    working_directory: str
    files: tuple[InputFile, ...]
    limits: AskedLimits
    artifact_patterns: tuple[str, ...]
    labels: dict[str, str]
    interpreter: str
    network: int = 0
    """A value of the contract's `Network`; 0 is unset."""
    allowed_hosts: tuple[str, ...] = ()
    secrets: tuple[str, ...] = ()
    mask_secrets: bool = False


@dataclasses.dataclass(frozen=True)
class Order:
    """A request that was checked from end to end: nothing about it can be refused any more but for what its secrets
    turn out to be."""

    request: RunRequest
    bundle: Bundle
    policy: EffectivePolicy
    env: dict[str, str]

    @functools.cached_property
    def size(self) -> int:
        """Bytes that the request and its unfolded bundle hold in memory, about."""
        request = self.request
        inline = sum(len(one.content or b"") for one in request.files)
        texts = sum(len(text) for pair in request.env.items() for text in pair) + sum(map(len, request.argv))
        files = sum(len(path) + ENTRY_BYTES for path in self.bundle.files)
        directories = sum(len(path) + ENTRY_BYTES for path in self.bundle.directories)
        return len(request.stdin) + inline + texts + files + directories

    @property
    def digests(self) -> list[str]:
        """The blobs that staging will read."""
        return [file.digest for file in self.bundle.files.values() if file.content is None]


class OrderDesk:
    """Checks requests. Reads blobs from disk, so it is called from a thread."""

    def __init__(
        self,
        default: Limits,
        ceiling: Limits,
        bundles: BundleConfig,
        network: NetworkCeiling,
        secrets: SecretKeeper | None = None,
    ) -> None:
        self._default = default
        self._ceiling = ceiling
        self._bundles = bundles
        self._network_ceiling = network
        self._secrets = secrets or SecretKeeper()

    def check(self, request: RunRequest, store: BlobStore, tenant: str = "") -> Order:
        """Makes an order of a request. Raises Refusal with the first thing that is wrong.

        `tenant`: whose request it is; nobody without a name is granted a secret.
        """
        _check_shape(request)
        network, hosts = effective_network(request.network, request.allowed_hosts, self._network_ceiling)
        env = environment(request.env, egress=network is not Network.NONE)
        check_arguments(request.argv, env)
        limits = effective_limits(request.limits, self._default, self._ceiling)
        bundle = self._bundle(request, store)
        check_secrets(request, bundle, store, tenant, self._secrets)
        policy = EffectivePolicy(
            *self._command(request, bundle, store),
            limits,
            network,
            hosts,
            secrets=request.secrets,
            mask_secrets=request.mask_secrets,
        )
        _check_working_directory(request.working_directory, bundle)
        return Order(request, bundle, policy, env)

    def _bundle(self, request: RunRequest, store: BlobStore) -> Bundle:
        files, directories = self._manifest(request.bundle_digest, store) if request.bundle_digest else ([], [])
        inputs = [_input(one, store) for one in request.files]
        taken = {file.path for file in files}
        for file in inputs:
            if file.path in taken:
                raise Refusal(
                    Reason.PATH_INVALID,
                    f"files: the skill has {shown(file.path)} already; choose another path for the input",
                    field="files",
                )
        bundle = Bundle.of(
            files + inputs,
            directories,
            bytes_max=self._bundles.bundle_bytes,
            entries_max=self._bundles.bundle_entries,
        )
        missing = store.missing([file.digest for file in bundle.files.values() if file.content is None])
        if missing:
            raise _bundle_missing(missing)
        for file in bundle.files.values():
            size = len(file.content) if file.content is not None else store.size(file.digest)
            if size is None:
                raise _bundle_missing([file.digest])
            if size != file.size:
                raise Refusal(
                    Reason.SKILL_INVALID,
                    f"the manifest gives {shown(file.path)} a size that its blob has not",
                    field=file.field,
                )
        return bundle

    def _manifest(self, digest: str, store: BlobStore) -> tuple[list[BundleFile], list[str]]:
        if not is_digest(digest):
            raise Refusal(
                Reason.REQUEST_INVALID,
                f"bundle_digest: {shown(digest)} is no digest; it is sha256: and 64 lower-case hex digits",
                field="bundle_digest",
            )
        size = store.size(digest)
        if size is None:
            raise _bundle_missing([digest])
        if size > MANIFEST_BYTES_MAX:
            raise Refusal(
                Reason.SKILL_INVALID,
                f"bundle {digest}: a manifest has at most {MANIFEST_BYTES_MAX:,} bytes",
                field="bundle_digest",
            )
        return parse_manifest(store.read(digest, MANIFEST_BYTES_MAX), self._bundles.bundle_entries)

    def _command(self, request: RunRequest, bundle: Bundle, store: BlobStore) -> tuple[str, tuple[str, ...]]:
        check_path(request.script_path, "script_path")
        file = bundle.files.get(request.script_path)
        if file is None:
            raise _script_not_found(request.script_path, bundle)
        content = file.content if file.content is not None else store.read(file.digest, file.size)
        interpreter, command = choose(
            f"{SKILL_ROOT}/{file.path}",
            content[:SHEBANG_BYTES],
            executable=file.executable,
            asked=request.interpreter,
        )
        if request.secrets:
            check_first_line(interpreter, command)
        return interpreter.name, (*command, *request.argv)


SKILL_ROOT = f"{SANDBOX_ENVIRONMENT['HOME'].rpartition('/')[0]}/skill"
"""Where init stages the skill: scripts see the same path in every sandbox."""


def _check_shape(request: RunRequest) -> None:
    if request.request_id and not re.fullmatch(r"[A-Za-z0-9._-]{1,128}", request.request_id):
        raise Refusal(
            Reason.REQUEST_INVALID,
            f"request_id: {shown(request.request_id)} may have 1 to 128 of A-Z a-z 0-9 . _ -; a UUID is a good one",
            field="request_id",
        )
    if len(request.stdin) > STDIN_BYTES_MAX:
        raise Refusal(
            Reason.REQUEST_INVALID,
            f"stdin: {len(request.stdin):,} bytes, at most {STDIN_BYTES_MAX:,} are passed; use an input file",
            field="stdin",
        )
    inline = sum(len(one.content or b"") for one in request.files)
    if len(request.files) > INPUT_FILES_MAX or inline > INPUT_BYTES_MAX:
        raise Refusal(
            Reason.REQUEST_INVALID,
            f"files: {len(request.files)} with {inline:,} bytes inline, at most {INPUT_FILES_MAX} with "
            f"{INPUT_BYTES_MAX:,} are taken; upload large ones and give their digest",
            field="files",
        )
    _check_patterns(request.artifact_patterns)
    check_labels(request.labels)


def _check_patterns(patterns: tuple[str, ...]) -> None:
    if len(patterns) > PATTERNS_MAX:
        raise Refusal(
            Reason.REQUEST_INVALID,
            f"artifact_patterns: {len(patterns)}, at most {PATTERNS_MAX} are taken",
            field="artifact_patterns",
        )
    for pattern in patterns:
        names = pattern.split("/")
        if not pattern or len(pattern.encode()) > PATTERN_BYTES_MAX or "\0" in pattern or {"", ".", ".."} & set(names):
            raise Refusal(
                Reason.PATH_INVALID,
                f"artifact_patterns: {shown(pattern)} is no pattern below the root; write it like out/*.csv or **",
                field="artifact_patterns",
            )


def _input(one: InputFile, store: BlobStore) -> BundleFile:
    check_path(one.path, "files")
    if one.content is not None:
        return BundleFile(
            one.path, digest_of(one.content), len(one.content), one.executable, one.content, field="files"
        )
    if not is_digest(one.digest):
        raise Refusal(
            Reason.REQUEST_INVALID,
            f"files: {shown(one.path)} has neither content nor the digest of an uploaded blob",
            field="files",
        )
    size = store.size(one.digest)
    if size is None:
        raise _bundle_missing([one.digest])
    return BundleFile(one.path, one.digest, size, one.executable, field="files")


def _check_working_directory(path: str, bundle: Bundle) -> None:
    if not path:
        return
    check_path(path, "working_directory")
    if path not in bundle.directories:
        raise Refusal(
            Reason.PATH_INVALID,
            f"working_directory: the skill has no directory {shown(path)}; leave it empty for the skill's root",
            field="working_directory",
        )


def _bundle_missing(digests: list[str]) -> Refusal:
    return Refusal(
        Reason.BUNDLE_MISSING,
        f"{len(digests)} blobs of the skill are not on this daemon; upload them and try again",
        missing=tuple(Violation(digest, "not on this daemon") for digest in digests[:MISSING_NAMED_MAX]),
    )


def _script_not_found(path: str, bundle: Bundle) -> Refusal:
    directory = path.rpartition("/")[0]
    beside = [one for one in bundle.files if one.rpartition("/")[0] == directory] or list(bundle.files)
    names = ", ".join(sorted(beside)[:20])
    return Refusal(
        Reason.SCRIPT_NOT_FOUND,
        f"script_path: the skill has no file {shown(path)}. It has: {names[:1_000]}",
        field="script_path",
    )
