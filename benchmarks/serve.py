"""What batching is worth, and what a lone request costs beside the same call in Python.

    python benchmarks/serve.py                                   # a random nano model on this machine's cores
    python benchmarks/serve.py --model bundled --length 128
    python benchmarks/serve.py --model bundled --length 128 --device cuda --clients 64 --requests 1024 --mixed
    python benchmarks/serve.py --model runs/mine --device cuda --clients 64 --requests 256 --steps 64
    python benchmarks/serve.py --model bundled --length 128 --device cuda --clients 64 --requests 1024 --http-processes 0
    python benchmarks/serve.py --model bundled --length 128 --lone

Batching: requests a second of `scdd serve` under load against one at a time, and the answers compared. One at a time means:
one client, one request after the other, one worker, no batches; on a CPU with one thread and with all of them, whichever is
faster. `--mixed`: besides, requests of half, three quarters and all of the length, in half, one and one and a half times the
steps (their mean is `--steps`), against equal ones on the same server. Medians of a request's seconds are told, alone and under
load; clients are several processes where there are cores for them. `--lone`: seconds of a request to an idle server, the first one after its start by itself, and of `LM.generate` in a
process that waits for its threads as `scdd` does; the two take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, NamedTuple

from output import json_flag, write_json

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="bundled, or a checkpoint or run folder; default: random weights")
    parser.add_argument("--size", default="nano", help="of the random model")
    parser.add_argument("--vocab", type=int, default=1024, help="of the random model")
    parser.add_argument("--length", type=int, default=62, help="tokens of a text")
    parser.add_argument("--steps", type=int, default=32)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--requests", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--batch-size", type=int, help="of the batching server; default: its own choice")
    parser.add_argument("--rows-per-forward", type=int, help="rows of an evaluation; default: the server's own choice")
    parser.add_argument(
        "--http-processes",
        type=int,
        help="of all servers, that talk HTTP in place of the computing one; default: their own choice",
    )
    parser.add_argument("--mixed", action="store_true", help="requests of several lengths and steps, too")
    parser.add_argument("--lone", action="store_true", help="measure one request at a time instead")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--timeout", type=float, default=600.0, help="the server's; a batch takes less than half of it")
    json_flag(parser)
    return parser.parse_args()


def random_model(folder: Path, size: str, vocab: int, length: int) -> Path:
    """A checkpoint with random weights, and a tokenizer made from the bundled text."""
    import torch

    from scdd.bundle.folder import Identity, write
    from scdd.data.tokenizer import TextTokenizer
    from scdd.models.dit import DiT
    from scdd.models.options import SIZES
    from scdd.recipe import load as recipe

    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "src/scdd/assets/wiki").glob("*.txt")]
    tokenizer = TextTokenizer.train(texts, vocab)
    generator = torch.Generator().manual_seed(0)
    model = DiT(SIZES[size], tokenizer.vocab, generator)
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.any():
                parameter.normal_(0.0, 0.02, generator=generator)
    spec = recipe.load("nano", [f"model.size={size}", f"data.length={length + 2}", f"data.vocab_size={vocab}"])
    identity = Identity(
        recipe=recipe.dumps(spec), vocab=tokenizer.vocab, tokenizer=tokenizer.to_str(), network=asdict(model.config)
    )
    return write(folder, identity, dict(model.state_dict()))


class Server(NamedTuple):
    port: int
    http_processes: int  # beside the one that computes


@contextmanager
def served(args: argparse.Namespace, model: str, *options: str, threads: int | None = None) -> Iterator[Server]:
    """A server that has begun to listen, and ends afterwards."""
    extra = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
    command = [sys.executable, "-m", "scdd", "serve", "--port", "0", "--device", args.device]
    command += ["--model", model] if model != "bundled" else []
    command += ["--max-queue", "4096", "--timeout", str(args.timeout), "--max-steps", "100000", *options]
    command += ["--compile"] if args.compile else []
    command += ["--http-processes", str(args.http_processes)] if args.http_processes is not None else []
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, cwd=ROOT, env={**os.environ, **extra}
    )
    assert process.stderr is not None
    said: deque[str] = deque(maxlen=12)
    try:
        for line in process.stderr:
            said.append(line)
            if found := re.search(r"http://127\.0\.0\.1:(\d+)", line):
                # what it says later is read as well: a pipe that nobody reads gets full, and stops who writes
                threading.Thread(target=said.extend, args=(process.stderr,), daemon=True).start()
                talking = re.search(r"HTTP in (\d+) other", "".join(said))
                yield Server(int(found[1]), int(talking[1]) if talking else 0)
                return
        raise SystemExit(f"the server ended with {process.wait()}:\n{''.join(said)}")
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


class Answer(NamedTuple):
    seconds: float
    tokens: list[int]


def body_of(args: argparse.Namespace, number: int, mixed: bool) -> dict[str, Any]:
    length, steps = args.length, args.steps
    if mixed:
        length = (length // 2, 3 * length // 4, length)[number % 3]
        steps = max(1, (steps // 2, steps, 3 * steps // 2)[number // 3 % 3])
    return {"length": length, "steps": steps, "seed": number, "top_p": 0.9, "stop": False}


def ask(port: int, args: argparse.Namespace, number: int, mixed: bool = False) -> Answer:
    """One text's tokens, and how long they took."""
    start = time.perf_counter()
    connection = HTTPConnection("127.0.0.1", port, timeout=600)
    body = json.dumps(body_of(args, number, mixed))
    connection.request("POST", "/v1/generate", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    answer = json.loads(response.read())
    connection.close()
    assert response.status == 200, answer
    return Answer(time.perf_counter() - start, list(answer["samples"][0]["tokens"]))


def several(port: int, args: argparse.Namespace, clients: int, numbers: list[int], mixed: bool) -> list[Answer]:
    """The answers that so many clients get, in one process."""
    with ThreadPoolExecutor(clients) as pool:
        return list(pool.map(lambda number: ask(port, args, number, mixed), numbers))


def rate(
    port: int, args: argparse.Namespace, clients: int, requests: int, mixed: bool = False
) -> tuple[float, list[Answer]]:
    """(Requests a second, the answers in order)."""
    processes = max(1, min(clients // 8, (os.cpu_count() or 1) // 4))
    shares = [list(range(first, requests, processes)) for first in range(processes)]
    if processes == 1:
        start = time.perf_counter()
        answers = several(port, args, clients, shares[0], mixed)
        return requests / (time.perf_counter() - start), answers
    with ProcessPoolExecutor(processes) as pool:
        list(pool.map(time.sleep, [0.2] * processes))  # all of them are there
        start = time.perf_counter()
        asked = [pool.submit(several, port, args, clients // processes, share, mixed) for share in shares]
        parts = [each.result() for each in asked]
        seconds = time.perf_counter() - start
    return requests / seconds, [parts[i % processes][i // processes] for i in range(requests)]


def measure(args: argparse.Namespace, model: str) -> dict[str, Any]:
    single = ["--workers", "1", "--batch-size", "1"]
    shape = [*(["--batch-size", str(args.batch_size)] if args.batch_size else [])]
    shape += ["--rows-per-forward", str(args.rows_per_forward)] if args.rows_per_forward else []
    alone_group = ["--rows-per-forward", "1"] if args.device != "cpu" else []  # nothing is filled up for one at a time
    few = max(4, args.requests // 6)
    rates: dict[str, list[float]] = {}
    seconds: dict[str, list[float]] = {}
    same: list[bool] = []
    for _ in range(args.repeats):  # taking turns: whatever else the machine does hits all alike
        for threads in (1, os.cpu_count()) if args.device == "cpu" else (None,):
            with served(args, model, *single, *alone_group, threads=threads) as (port, _):
                ask(port, args, 0)
                name = "one at a time" + (f", {threads} threads" if threads else "")
                rates.setdefault(name, []).append(rate(port, args, 1, few)[0])
        with served(args, model, *shape) as (port, http_processes):
            for name, mixed in (("batched", False), ("mixed", True))[: 1 + args.mixed]:
                serial = [ask(port, args, number, mixed) for number in range(few)]
                rate(port, args, args.clients, args.clients, mixed)
                found, answers = rate(port, args, args.clients, args.requests, mixed)
                rates.setdefault(name, []).append(found)
                seconds.setdefault(f"{name}, alone", []).append(statistics.median(each.seconds for each in serial))
                seconds.setdefault(f"{name}, under load", []).append(
                    statistics.median(each.seconds for each in answers)
                )
                same.append([each.tokens for each in answers[:few]] == [each.tokens for each in serial])
    middle = {name: statistics.median(values) for name, values in rates.items()}
    best = max(value for name, value in middle.items() if name not in ("batched", "mixed"))
    return {
        "requests_per_s": {name: [round(v, 3) for v in values] for name, values in rates.items()},
        "seconds": {name: [round(v, 4) for v in values] for name, values in seconds.items()},
        "ratio": round(middle["batched"] / best, 3),
        "mixed_to_equal": round(middle["mixed"] / middle["batched"], 3) if args.mixed else None,
        "equal_to_serial": all(same),
        **{name: getattr(args, name) for name in ("device", "length", "steps", "clients", "requests")},
        "http_processes": http_processes,
        "model": args.model or f"random {args.size}, {args.vocab} tokens",
    }


def inside(args: argparse.Namespace) -> None:
    """What a server does for a lone request, without the server."""
    from scdd.lm.loading import load

    lm = load(None if args.model == "bundled" else args.model, device=args.device)
    how = {"length": args.length, "steps": args.steps, "top_p": 0.9, "stop": False}
    lm.generate(seed=0, **how)
    times = []
    for seed in range(args.requests):
        start = time.perf_counter()
        lm.generate(seed=seed, **how)
        times.append(time.perf_counter() - start)
    print(json.dumps(times))


def lone(args: argparse.Namespace, model: str) -> dict[str, Any]:
    times: dict[str, list[float]] = {"in Python": [], "first request": [], "request": []}
    shape = ["--length", str(args.length), "--steps", str(args.steps), "--requests", str(args.requests)]
    command = [sys.executable, __file__, "--inside", "--model", model, "--device", args.device, *shape]
    for _ in range(args.repeats):
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
        times["in Python"] += json.loads(done.stdout)
        with served(args, model) as (port, http_processes):
            for seed in range(args.requests + 1):
                start = time.perf_counter()
                ask(port, args, seed)
                times["request" if seed else "first request"].append(time.perf_counter() - start)
    middle = {name: statistics.median(values) for name, values in times.items()}
    return {
        "seconds": {name: [round(v, 3) for v in values] for name, values in times.items()},
        "ratio": round(middle["request"] / middle["in Python"], 3),
        **{name: getattr(args, name) for name in ("device", "length", "steps", "model")},
        "http_processes": http_processes,
    }


def main() -> None:
    args = arguments()
    if args.inside:
        inside(args)
        return
    with tempfile.TemporaryDirectory() as folder:
        model = args.model or str(random_model(Path(folder) / "random", args.size, args.vocab, args.length))
        found = lone(args, model) if args.lone else measure(args, model)
    write_json(args.json, found)
    if args.lone:
        for name, values in found["seconds"].items():
            print(f"{name:<14} {statistics.median(values):7.3f} s   {values}")
        print(f"a lone request takes {found['ratio']:.2f}× the call")
        return
    for name, values in found["requests_per_s"].items():
        print(f"{name:<26} {statistics.median(values):9.3f} requests/s   {values}")
    for name, values in found["seconds"].items():
        print(f"{name:<26} {statistics.median(values):9.4f} s a request   {values}")
    if args.mixed:
        print(f"mixed lengths and steps: {found['mixed_to_equal']:.2f}× as many requests as equal ones")
    print(f"batching is worth {found['ratio']:.2f}×; answers equal to serial ones: {found['equal_to_serial']}")


if __name__ == "__main__":
    main()
