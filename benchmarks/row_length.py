"""What a model sees in rows longer than it was trained on: cut, whole, or whole through a window, at the same noise.

    python benchmarks/row_length.py TEXT.jsonl                                    # the bundled model, rows of 1024
    python benchmarks/row_length.py TEXT.jsonl --model RUN --row 512 --cuts 2 --windows 127,255,350
    python benchmarks/row_length.py SHARDS --bound 2 --rows 400                   # the whole bound, cut and as the model has it

The same stretches of text with the same tokens masked or replaced are read in rows as long as those of training (--cuts pieces), whole,
and whole with attention to so many tokens on either side, once with the row's first token besides and once without. For each: nats
of the noised tokens, how many of them are the likeliest token there, and the difference of the nats to the cut rows, stretch by stretch.
With --bound the difference is that of the negative ELBO of the tokens between the ends, in nats a token and bits a byte: so many times for each
stretch, spread evenly over all of them. Both ways see the same times and noise, so a difference is known far better than either bound. For networks
of kind llama.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from output import json_flag, write_json
from scdd.core.rng import CounterRNG, derive_seed, uniforms
from scdd.data.tokenizer import TextTokenizer
from scdd.evals.measure.texts import open_stream, rows
from scdd.lm.loading import load
from scdd.lm.model import LM
from scdd.models.llama import Llama
from scdd.models.network import dense_logits
from scdd.objectives.times import TimeSampler, nelbo_densities
from scdd.ops.documents.reference import window_mask
from scdd.ops.elbo import elbo
from scdd.processes.base import Process

NOISE = ((0.0, 0.1), (0.4, 0.1), (0.8, 0.05))  # shares of masks and of random tokens
TOGETHER = 2048  # tokens that are read at a time


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("text", nargs="+", help="text file, JSON lines, folder or shards")
    parser.add_argument("--model", help="checkpoint or run folder; default: the bundled model")
    parser.add_argument("--row", type=int, default=1024, help="tokens of a whole row, its ends included")
    parser.add_argument("--cuts", type=int, default=4, help="rows that it is cut into for comparison")
    parser.add_argument("--windows", default="127,255,350", help="tokens seen on either side, comma-separated")
    parser.add_argument("--rows", type=int, default=24, help="stretches of text")
    parser.add_argument(
        "--bound", type=int, metavar="LOOKS", help="compare the whole bound, at so many times a stretch"
    )
    parser.add_argument("--dtype", help="of the arithmetic; default: the model's usual one")
    parser.add_argument("--device")
    json_flag(parser)
    return parser.parse_args()


def framed(tokens: Tensor, cuts: int, own: TextTokenizer, device: torch.device) -> Tensor:
    """Each stretch as so many rows with their ends."""
    pieces = tokens.reshape(len(tokens) * cuts, -1)
    bos, eos = (torch.full((len(pieces), 1), each) for each in (own.bos_id, own.eos_id))
    return torch.cat((bos, pieces, eos), 1).to(device)


@torch.no_grad()
def bound(lm: LM, texts: Tensor, cuts: int, looks: int) -> list[dict[str, float]]:
    """The negative ELBO of the tokens between the ends, cut and whole."""
    process, network = lm.process, lm.network
    assert isinstance(process, Process)
    count, densities, shares = len(texts) * looks, nelbo_densities(process).mixture, (0.75, 0.25)
    order = torch.randperm(count, generator=torch.Generator().manual_seed(1))
    offsets = uniforms((count,), CounterRNG(derive_seed(0, "times"), list(range(count))))
    place = (order + offsets) / count  # one stratum each; the first three quarters are the first density's
    first = place < shares[0]
    inside = torch.where(first, place / shares[0], (place - shares[0]) / shares[1])
    t = torch.where(first, *(TimeSampler(each).at(inside).t for each in densities))
    density = sum(share / each.importance_weight(t) for share, each in zip(shares, densities, strict=True))
    nats = torch.zeros(2, len(texts), looks, dtype=torch.float64)
    for n in range(count):
        i, look = n // looks, n % looks
        x, at = texts[i : i + 1], t[n : n + 1]
        z = process.corrupt(x, at, CounterRNG(derive_seed(0, "corrupt"), [n]))
        coefficients = process.elbo_coefficients(x, z, at, None).flatten(x.shape)
        for way, pieces in enumerate((cuts, 1)):
            hidden = network.hidden(framed(z, pieces, lm.tokenizer, lm.device), at.repeat(pieces))[:, 1:-1].flatten(
                0, 1
            )
            on = [each.flatten().to(lm.device) for each in (x, z)]
            _, losses = elbo(hidden, network.head, *on, coefficients, noise=process.noise_scores(lm.device))
            nats[way, i, look] = losses.double().sum().cpu() / density[n]
        if n % 100 == 99:
            told = nats.flatten(1)[:, : n + 1].mean(1) / texts.shape[1]
            print(f"  {n + 1} of {count}: {told[1] - told[0]:+.4f} nats a token", file=sys.stderr, flush=True)
    tokens, size = texts.shape[1], len(lm.tokenizer.decode(texts.flatten().tolist()).encode()) / texts.numel()
    each = (nats / tokens).mean(2)  # [2, texts]; looks of one text are no independent texts
    three = (*each, each[1] - each[0])
    rows, errors = zip(*((one.mean().item(), one.std().item() / len(texts) ** 0.5) for one in three), strict=True)
    bits = size * 0.6931471805599453
    return [
        {"nats": a, "error": b, "bits": a / bits, "bits_error": b / bits} for a, b in zip(rows, errors, strict=True)
    ]


def main() -> None:
    args = arguments()
    lm = load(args.model, device=args.device, dtype=args.dtype)
    network, own = lm.network, lm.tokenizer
    if not isinstance(network, Llama):
        raise SystemExit("This compares attention windows, which networks of kind llama have: give one of those.")
    inner = (args.row // args.cuts - 2) * args.cuts
    texts = torch.tensor([r[1:-1] for r in rows(open_stream(args.text, own), own, inner + 2, args.rows, True).rows])

    if args.bound:
        names = (f"cut into {args.cuts} rows of {inner // args.cuts + 2}", f"one row of {inner + 2}", "difference")
        told = bound(lm, texts, args.cuts, args.bound)
        print(f"{len(texts)} stretches of {inner} tokens, {args.bound} times each")
        for name, each in zip(names, told, strict=True):
            print(
                f"  {name:28} {each['nats']:+.4f} ± {each['error']:.4f} nats a token, {each['bits']:+.4f} ± {each['bits_error']:.4f} bits a byte"
            )
        write_json(args.json, dict(zip(names, told, strict=True)))
        return

    network.config = replace(network.config, attention_window=None)  # masks alone say what is seen

    def mask_of(window: int, first: bool) -> Callable[[int], Tensor]:
        def mask(length: int) -> Tensor:
            at = torch.arange(length, device=lm.device)
            seen = window_mask(at, at, False, window)
            return seen if first else seen & ((at[:, None] - at[None, :]).abs() <= window)

        return mask

    ways: dict[str, tuple[int, Callable[[int], Tensor] | None]] = {
        f"cut into {args.cuts} rows of {inner // args.cuts + 2}": (args.cuts, None),
        f"one row of {inner + 2}, all of it seen": (1, None),
    }
    for window in map(int, args.windows.split(",")):
        for first in (True, False):
            name = f"… {window} to either side" + (" and the first" if first else " alone")
            ways[name] = (1, mask_of(window, first))

    def read(z: Tensor, x: Tensor, mask: Callable[[int], Tensor] | None) -> tuple[Tensor, Tensor]:
        """(−log x_θ of x, whether x is the likeliest), of framed rows."""
        network.rotary.grow(z.shape[1])
        seen = torch.ones(z.shape[1], z.shape[1], dtype=torch.bool) if mask is None else mask(z.shape[1])
        log_p = dense_logits(network(z, None, False, seen.to(lm.device)[None, None]), network.head, z).log_softmax(-1)
        return -log_p.gather(-1, x[..., None])[..., 0].cpu(), (log_p.argmax(-1) == x).cpu()

    found = []
    for masks, noise in NOISE:
        generator = torch.Generator().manual_seed(1)
        u = torch.rand(texts.shape, generator=generator)
        random = torch.randint(0, own.mask_id, texts.shape, generator=generator)
        z = torch.where(u < masks, own.mask_id, torch.where(u < masks + noise, random, texts))
        hit = u < masks + noise
        print(f"\n{masks:.0%} masked, {noise:.0%} random; {len(texts)} stretches of {inner} tokens")
        base: Tensor | None = None
        for name, (cuts, mask) in ways.items():
            rows_z, rows_x, nats, right = framed(z, cuts, own, lm.device), framed(texts, cuts, own, lm.device), [], []
            step = max(1, TOGETHER // rows_z.shape[1])
            with torch.no_grad():
                for at in range(0, len(rows_z), step):
                    part = read(rows_z[at : at + step], rows_x[at : at + step], mask)
                    nats.append(part[0][:, 1:-1])
                    right.append(part[1][:, 1:-1])
            each = torch.cat(nats).view(texts.shape).double()
            per_text = (each * hit).sum(1) / hit.sum(1)
            base = per_text if base is None else base
            gap, error = (per_text - base).mean().item(), (per_text - base).std().item() / len(texts) ** 0.5
            hits = torch.cat(right).view(texts.shape)[hit].double().mean().item()
            print(f"  {name:44} {per_text.mean():.4f} nats ({gap:+.4f} ± {error:.4f})  {hits:.2%} exact", flush=True)
            row = {"masks": masks, "noise": noise, "way": name, "nats": per_text.mean().item()}
            found.append({**row, "gap": gap, "error": error, "exact": hits})
    write_json(args.json, found)


if __name__ == "__main__":
    main()
