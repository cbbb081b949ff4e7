"""One small script for each behaviour and interpreter. What a behaviour prints is the same in all four."""

from typing import NamedTuple

__all__ = [
    "ARGUMENTS",
    "BROKEN_TEXT",
    "ENVIRONMENT",
    "FAILURE",
    "FILES",
    "FLOOD",
    "HANG",
    "INPUT",
    "MODES",
    "NEIGHBOURS",
    "ORPHAN",
    "SUFFIXES",
    "Behaviour",
]

SUFFIXES = {"python": ".py", "node": ".js", "bash": ".sh", "pwsh": ".ps1"}


class Behaviour(NamedTuple):
    """The same thing said in each language."""

    python: str
    node: str
    bash: str
    pwsh: str

    def files(self, interpreter: str) -> dict[str, str | bytes | None]:
        """The script as a skill's file."""
        return {self.path(interpreter): getattr(self, interpreter)}

    @staticmethod
    def path(interpreter: str) -> str:
        """Where the script is."""
        return f"scripts/run{SUFFIXES[interpreter]}"


ARGUMENTS = Behaviour(
    python=r"""
import sys
sys.stdout.write("".join(one + "\0" for one in sys.argv[1:]))
""",
    node=r"""
process.stdout.write(process.argv.slice(2).map((one) => one + "\0").join(""));
""",
    bash=r"""
for one; do printf '%s\0' "$one"; done
""",
    pwsh=r"""
foreach ($one in $args) { [Console]::Out.Write("$one`0") }
""",
)
"""Prints each argument and a NUL after it."""

FAILURE = Behaviour(
    python="""
import sys
print("out")
print("err", file=sys.stderr)
sys.exit(7)
""",
    node="""
console.log("out");
console.error("err");
process.exitCode = 7;
""",
    bash="""
echo out
echo err >&2
exit 7
""",
    pwsh="""
[Console]::Out.WriteLine("out")
[Console]::Error.WriteLine("err")
exit 7
""",
)
"""Says something on both streams and exits with 7."""

ENVIRONMENT = Behaviour(
    python=r"""
import os
for name, value in os.environ.items():
    print(f"{name}={value}", end="\0")
""",
    node=r"""
for (const [name, value] of Object.entries(process.env)) process.stdout.write(`${name}=${value}\0`);
""",
    bash="env -0\n",
    pwsh="""
Get-ChildItem env: | ForEach-Object { [Console]::Out.Write("$($_.Name)=$($_.Value)`0") }
""",
)
"""Prints its environment, NAME=VALUE and a NUL for each variable."""

INPUT = Behaviour(
    python="""
import sys
data = sys.stdin.buffer.read()
print(len(data), data.hex()[:16])
""",
    node="""
const data = require("fs").readFileSync(0);
console.log(data.length, data.toString("hex").slice(0, 16));
""",
    bash="""
cat > copy
printf '%s %s\\n' "$(wc -c < copy)" "$(head -c 8 copy | od -An -tx1 | tr -d ' \\n')"
""",
    pwsh="""
$copy = [IO.MemoryStream]::new()
[Console]::OpenStandardInput().CopyTo($copy)
$hex = [Convert]::ToHexString($copy.ToArray()).ToLower()
[Console]::Out.WriteLine("$($copy.Length) $($hex.Substring(0, [Math]::Min(16, $hex.Length)))")
""",
)
"""Reads standard input to its end; prints its length and its first eight bytes in hex."""

NEIGHBOURS = Behaviour(
    python="""
import os
import neighbour
print(open("references/note.txt").read() + neighbour.WORD, os.listdir("assets/empty"))
""",
    node="""
const fs = require("fs");
const neighbour = require("./neighbour.js");
const inside = JSON.stringify(fs.readdirSync("assets/empty"));
console.log(fs.readFileSync("references/note.txt", "utf8") + neighbour.WORD, inside);
""",
    bash="""
source "$(dirname "$0")/neighbour.sh"
shopt -s dotglob nullglob
inside=(assets/empty/*)
test -d assets/empty && echo "$(cat references/note.txt)$WORD [${inside[*]}]"
""",
    pwsh="""
. "$PSScriptRoot/neighbour.ps1"
$inside = @(Get-ChildItem -Force assets/empty)
[Console]::Out.WriteLine((Get-Content -Raw references/note.txt) + $WORD + " [" + ($inside -join ",") + "]")
""",
)
"""Prints what references/note.txt and a module beside the script say, and what is in assets/empty."""

MODES = Behaviour(
    python="""
import os
print(*[oct(os.stat(path).st_mode & 0o700) for path in ("scripts/tool", "references/note.txt")])
""",
    node="""
const mode = (path) => "0o" + (require("fs").statSync(path).mode & 0o700).toString(8);
console.log(mode("scripts/tool"), mode("references/note.txt"));
""",
    bash="""
for path in scripts/tool references/note.txt; do
    mode=0
    test -r "$path" && ((mode += 4))
    test -w "$path" && ((mode += 2))
    test -x "$path" && ((mode += 1))
    modes+=("0o${mode}00")
done
echo "${modes[@]}"
""",
    pwsh="""
$modes = foreach ($path in "scripts/tool", "references/note.txt") {
    "0o" + [Convert]::ToString([int][IO.File]::GetUnixFileMode((Resolve-Path $path)) -band 0x1C0, 8)
}
[Console]::Out.WriteLine($modes -join " ")
""",
)
"""Prints the owner's mode bits of scripts/tool and references/note.txt."""

HANG = Behaviour(
    python="""
import os, subprocess, sys, time
subprocess.Popen(["sleep", sys.argv[1]], start_new_session=True)
os.write(1, b"partial\\n")
os.write(2, b"trouble\\n")
time.sleep(600)
""",
    node="""
require("child_process").spawn("sleep", [process.argv[2]], { detached: true, stdio: "inherit" });
console.log("partial");
console.error("trouble");
setTimeout(() => {}, 600_000);
""",
    bash="""
setsid sleep "$1" &
echo partial
echo trouble >&2
sleep 600
""",
    pwsh="""
$null = Start-Process -FilePath sleep -ArgumentList $args[0] -PassThru
[Console]::Out.WriteLine("partial")
[Console]::Error.WriteLine("trouble")
Start-Sleep -Seconds 600
""",
)
"""Starts `sleep ARGUMENT` in the background, says something on both streams, and never ends."""

ORPHAN = Behaviour(
    python="""
import subprocess, sys
subprocess.Popen(["sleep", sys.argv[1]], start_new_session=True)
print("done")
""",
    node="""
const child = require("child_process").spawn("sleep", [process.argv[2]], { detached: true, stdio: "inherit" });
child.unref();
console.log("done");
""",
    bash="""
setsid sleep "$1" &
echo done
""",
    pwsh="""
$null = Start-Process -FilePath sleep -ArgumentList $args[0] -PassThru
[Console]::Out.WriteLine("done")
exit 0
""",
)
"""Starts `sleep ARGUMENT` in the background, which keeps both output streams open, and ends."""

BROKEN_TEXT = Behaviour(
    python=r"""
import sys
for stream in sys.stdout, sys.stderr:
    stream.buffer.write(b"a\xff\xc3(\x80\xf0\x9f\x98z\0")
""",
    node=r"""
for (const stream of [process.stdout, process.stderr])
    stream.write(Buffer.from("61ffc32880f09f987a00", "hex"));
""",
    bash=r"""
printf 'a\xff\xc3(\x80\xf0\x9f\x98z\0'
printf 'a\xff\xc3(\x80\xf0\x9f\x98z\0' >&2
""",
    pwsh="""
$bytes = [Convert]::FromHexString("61ffc32880f09f987a00")
foreach ($stream in [Console]::OpenStandardOutput(), [Console]::OpenStandardError()) {
    $stream.Write($bytes, 0, $bytes.Length)
}
""",
)
"""Writes ten bytes that are no UTF-8 to both streams."""

FLOOD = Behaviour(
    python="""
import sys
pieces = int(sys.argv[1])
for _ in range(pieces):
    sys.stdout.buffer.write(b"o" * 65536)
    sys.stderr.buffer.write(b"e" * 65536)
""",
    node="""
const fs = require("fs");
const write = (descriptor, data) => { for (let at = 0; at < data.length; ) at += fs.writeSync(descriptor, data, at); };
for (let piece = 0; piece < Number(process.argv[2]); piece++) {
    write(1, Buffer.alloc(65536, "o"));
    write(2, Buffer.alloc(65536, "e"));
}
""",
    bash="""
head -c $(($1 * 65536)) /dev/zero | tr '\\0' o &
head -c $(($1 * 65536)) /dev/zero | tr '\\0' e >&2 &
wait
""",
    pwsh="""
$streams = @{ o = [Console]::OpenStandardOutput(); e = [Console]::OpenStandardError() }
for ($piece = 0; $piece -lt [int]$args[0]; $piece++) {
    foreach ($letter in "o", "e") {
        $bytes = [Text.Encoding]::ASCII.GetBytes($letter * 65536)
        $streams[$letter].Write($bytes, 0, $bytes.Length)
    }
}
""",
)
"""Writes ARGUMENT pieces of 64 KiB to standard output and as many to standard error, both at once."""

FILES = Behaviour(
    python="""
import os
os.makedirs("out/deep")
open("out/data.bin", "wb").write(bytes(range(256)) * 4)
open("out/deep/table.csv", "w").write("a,b\\n")
open("out/empty.txt", "w").close()
open("references/note.txt", "a").write(" and more")
open("input.txt").read()
""",
    node="""
const fs = require("fs");
fs.mkdirSync("out/deep", { recursive: true });
const all = Buffer.from(Array.from({ length: 256 }, (_, value) => value));
fs.writeFileSync("out/data.bin", Buffer.concat([all, all, all, all]));
fs.writeFileSync("out/deep/table.csv", "a,b\\n");
fs.writeFileSync("out/empty.txt", "");
fs.appendFileSync("references/note.txt", " and more");
fs.readFileSync("input.txt");
""",
    bash="""
mkdir -p out/deep
for _ in 1 2 3 4; do
    for value in {0..255}; do printf "\\\\x$(printf %02x "$value")"; done
done > out/data.bin
echo a,b > out/deep/table.csv
: > out/empty.txt
printf ' and more' >> references/note.txt
cat input.txt > /dev/null
""",
    pwsh="""
$null = New-Item -ItemType Directory -Path out/deep
[IO.File]::WriteAllBytes("$PWD/out/data.bin", [byte[]](@(0..255) * 4))
[IO.File]::WriteAllText("$PWD/out/deep/table.csv", "a,b`n")
[IO.File]::WriteAllText("$PWD/out/empty.txt", "")
[IO.File]::AppendAllText("$PWD/references/note.txt", " and more")
$null = [IO.File]::ReadAllText("$PWD/input.txt")
""",
)
"""Makes out/data.bin, out/deep/table.csv and out/empty.txt, appends to references/note.txt, reads input.txt."""
