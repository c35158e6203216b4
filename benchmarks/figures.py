"""The GPU figures of docs/speed.md and docs/serving.md again, with one command.

    python benchmarks/figures.py --list
    python benchmarks/figures.py --out build/figures                        # everything; again: what is missing
    python benchmarks/figures.py --out build/figures --parts train --seconds 300
    python benchmarks/figures.py --out build/figures --only "tiny"

First all that compiles is run once, side by side as far as the GPU's memory goes, with the compilers' caches in --out: compiling takes longer
than measuring. Then figures are measured one by one, nothing else being run. FIGURE.json is what a benchmark found and
FIGURE.txt what it printed; a figure that has its JSON is not measured again. With --seconds nothing is begun that
would likely end later. A benchmark that fails leaves its text and the others go on; the exit code is 1 then.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
BILLION = "--network llama --size smollm2-1.7b --depth 14 --length 512 --batch 64 --micro 32"
ONE_OBJECTIVE = '--only "SCDD p_u 0.2, T"'
TINY = "--size tiny --length 128 --steps 32 --vocab 8192 --ways eager,graphed"
SERVER = "--model bundled --length 128 --device cuda --repeats 1"
LIMIT = 200.0  # seconds that a benchmark may take


@dataclass(frozen=True)
class Figure:
    """One run of a benchmark."""

    part: str
    name: str
    benchmark: str
    flags: str
    compiled: int = 0  # GiB that it takes, of those that compile; 0: nothing worth doing beforehand
    seconds: float = 30.0  # that it may be expected to take

    def command(self, *more: str) -> list[str]:
        """What runs it."""
        return [sys.executable, str(FOLDER / f"{self.benchmark}.py"), *shlex.split(self.flags), *more]

    @property
    def stem(self) -> str:
        """Of its files."""
        return f"{self.part}-{self.name.replace(' ', '-')}"


def training(name: str, flags: str, gib: int) -> Figure:
    """A step of training."""
    return Figure("train", name, "train_step", f"{ONE_OBJECTIVE} {flags}".strip(), gib)


FIGURES = (
    training("small", "", 11),
    training("small, replayed", "--cudagraphs", 12),
    Figure("train", "small, MDLM, replayed", "train_step", "--only MDLM --cudagraphs", 12),
    training("SmolLM2-135M", "--network llama --micro 64 --cudagraphs", 14),
    training("SmolLM2-135M, products kept", "--network llama --micro 64 --cudagraphs --keep-product", 15),
    training("medium", "--size medium", 24),
    training("medium, FP8", "--size medium --precision fp8", 24),
    training("1 B", BILLION, 44),
    training("1 B, FP8", f"{BILLION} --precision fp8", 44),
    Figure("sample", "tiny, 1 text", "sample", f"{TINY} --batch 1"),
    Figure("sample", "tiny, 64 texts", "sample", f"{TINY} --batch 64"),
    Figure("sample", "small, 16 texts", "sample", "--batch 16 --steps 64 --ways graphed,compiled", 4),
    Figure("sample", "one step", "denoise_step", "", 4),
    Figure("serve", "64 clients", "serve", f"{SERVER} --clients 64 --requests 1024 --mixed", seconds=60),
    Figure("serve", "64 clients, no HTTP apart", "serve", f"{SERVER} --clients 64 --requests 1024 --mixed --http-processes 0", seconds=60),
    Figure("serve", "a lone client", "serve", f"{SERVER} --lone --requests 20"),
)  # fmt: skip


def chosen(args: argparse.Namespace) -> list[Figure]:
    """Those that were asked for and are not there."""
    parts = args.parts.split(",") if args.parts else sorted({each.part for each in FIGURES})
    if unknown := set(parts) - {each.part for each in FIGURES}:
        raise SystemExit(
            f"--parts {', '.join(sorted(unknown))}: choose from {', '.join(sorted({f.part for f in FIGURES}))}."
        )
    named = [each for each in FIGURES if each.part in parts and args.only in each.name]
    return [each for each in named if not (args.out / f"{each.stem}.json").exists()]


def compile_all(figures: list[Figure], room: float, until: float, out: Path) -> None:
    """Run what compiles once, side by side within `room` GiB, the largest first; its numbers are nobody's."""
    waiting = sorted((each for each in figures if each.compiled), key=lambda each: -each.compiled)
    running: dict[subprocess.Popen[bytes], Figure] = {}
    while waiting or running:
        for each in list(waiting):
            if sum(other.compiled for other in running.values()) + each.compiled <= room or not running:
                waiting.remove(each)
                with (out / f"{each.stem}.compiling.txt").open("wb") as said:
                    process = subprocess.Popen(each.command("--repeats", "1"), stdout=said, stderr=subprocess.STDOUT)
                running[process] = each
        for process in [process for process in running if process.poll() is not None]:
            print(f"compiled: {running.pop(process).name} (exit code {process.returncode})", flush=True)
        if time.monotonic() > until:
            for process in running:
                process.kill()
            return
        time.sleep(0.2)


def measure(figure: Figure, out: Path) -> bool:
    """Whether it went well; its files are there afterwards."""
    file, began = out / f"{figure.stem}.json", time.monotonic()
    unfinished = file.with_suffix(".part")
    print(f"\n{figure.part}: {figure.name}\n  {shlex.join(figure.command()[1:])}", flush=True)
    try:
        done = subprocess.run(
            figure.command("--json", str(unfinished)), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=LIMIT
        )
        said, well = done.stdout, done.returncode == 0 and unfinished.exists()
    except subprocess.TimeoutExpired as late:
        said, well = (late.stdout or b"") + f"\nended after {LIMIT:.0f} s\n".encode(), False
    file.with_suffix(".txt").write_bytes(said)
    print(said.decode(errors="replace").strip()[-2000:])
    if well:
        unfinished.rename(file)
    print(f"  {'measured' if well else 'FAILED'} in {time.monotonic() - began:.0f} s", flush=True)
    return well


def memory() -> float:
    """GiB of the GPU that are free."""
    import torch

    if not torch.cuda.is_available():
        raise SystemExit("These are figures of a GPU, and there is none here; --list tells what would be run.")
    return float(torch.cuda.mem_get_info()[0]) / 2**30


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, default=Path("build/figures"), help="folder for results; what is there stays"
    )
    parser.add_argument("--parts", default="", help="some of train, sample and serve, comma-separated; default: all")
    parser.add_argument("--only", default="", help="figures whose name contains this")
    parser.add_argument("--seconds", type=float, default=3600.0, help="in all, compiling included")
    parser.add_argument("--list", action="store_true", help="say what would be run, and run nothing")
    args = parser.parse_args()
    figures = chosen(args)
    if args.list:
        for each in figures:
            print(f"{each.part:8}{each.name:30}{shlex.join(each.command()[1:])}")
        return
    end, room = time.monotonic() + args.seconds, memory()
    args.out.mkdir(parents=True, exist_ok=True)
    for name, place in (("TORCHINDUCTOR_CACHE_DIR", "inductor"), ("TRITON_CACHE_DIR", "triton")):
        os.environ.setdefault(name, str(args.out.resolve() / "cache" / place))
    compile_all(figures, 0.9 * room, min(end, time.monotonic() + LIMIT), args.out)
    missing = [each.name for each in figures if time.monotonic() + each.seconds > end or not measure(each, args.out)]
    if missing:
        raise SystemExit(f"\nNot measured: {'; '.join(missing)}. The same command goes on with them.")


if __name__ == "__main__":
    main()
