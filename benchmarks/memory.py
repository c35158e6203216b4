"""Memory of training a decoder, by calculation: what each GPU holds, for sizes from 135 M to 8 B.

python benchmarks/memory.py
python benchmarks/memory.py --gpus 8 --rows 8 --length 1024 --recompute
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import torch

from scdd.core.types import Vocab, padded
from scdd.models.llama import Llama
from scdd.models.options import DECODERS, LlamaConfig

GIB = 2.0**30
FLOAT, HALF = 4, 2
CHUNK = 2 * 0.45 * GIB  # logits of one chunk of positions and their gradient


def shape(depth: int, width: int, heads: int, kv_heads: int, mlp_width: int, tied: bool = False) -> LlamaConfig:
    """A decoder with heads of width / heads channels."""
    return replace(
        DECODERS["smollm2-135m"],
        **{"depth": depth, "width": width, "heads": heads, "kv_heads": kv_heads, "mlp_width": mlp_width, "tied": tied},
        head_width=width // heads,
    )


SIZES = {
    "SmolLM2-135M": (DECODERS["smollm2-135m"], 49_153),
    "SmolLM2-360M": (DECODERS["smollm2-360m"], 49_153),
    "SmolLM2-1.7B": (DECODERS["smollm2-1.7b"], 49_153),
    "Qwen2.5-3B": (shape(36, 2048, 16, 2, 11_008, tied=True), 151_666),
    "Llama-2-7B": (shape(32, 4096, 32, 32, 11_008), 32_001),
    "Llama-3-8B": (shape(32, 4096, 32, 8, 14_336), 128_257),
}


def state(parameters: int, ema: bool) -> int:
    """float32 weights, gradients and AdamW's two moments, and the moving average."""
    return parameters * FLOAT * (5 if ema else 4)


def activations(config: LlamaConfig, tokens: int, recompute: bool) -> float:
    """What the backward pass needs: two sums and two norms of the stream, q, k, v, attention's output, gate and up."""
    attention = (2 * config.heads + 2 * config.kv_heads) * config.head_width
    layer = HALF * (4 * config.width + attention + 2 * config.mlp_width)
    kept = HALF * (config.width + config.heads * config.head_width)
    return tokens * (config.depth * kept + layer if recompute else config.depth * layer)


def gathered(config: LlamaConfig, network: Llama, vocab: Vocab, gpus: int) -> float:
    """Whole tensors that pass through a GPU of several: two layers with a gradient each, embedding and head."""
    if gpus == 1:
        return 0.0
    layer = sum(p.numel() for p in network.layers()[0].parameters())
    outer = padded(vocab.size) * config.width * (1 if config.tied else 2)
    return FLOAT * (2 * 2 * layer + 2 * outer)


def main() -> None:
    """One line a size."""
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--gpus", type=int, default=1, help="that share weights, gradients and moments (FSDP2)")
    args.add_argument("--rows", type=int, default=16, help="of one backward pass on each GPU (micro_batch_size)")
    args.add_argument("--length", type=int, default=512, help="tokens in a row")
    args.add_argument("--no-ema", action="store_true", help="without the moving average")
    args.add_argument("--recompute", action="store_true", help="training.recompute")
    args = args.parse_args()
    tokens = args.rows * args.length
    print(f"GiB on each of {args.gpus} GPUs, {args.rows} rows of {args.length} tokens in a backward pass")
    print(f"{'':14}{'parameters':>12}{'state':>8}{'passing':>9}{'activations':>13}{'head':>6}{'sum':>8}")
    for name, (config, size) in SIZES.items():
        vocab = Vocab(size, size - 1)
        with torch.device("meta"):
            network = Llama(config, vocab)
        parameters = network.num_parameters()
        parts = (
            state(parameters, not args.no_ema) / args.gpus,
            gathered(config, network, vocab, args.gpus) + HALF * parameters * (args.gpus == 1),
            activations(config, tokens, args.recompute),
            CHUNK,
        )
        shown = "".join(f"{part / GIB:{width}.1f}" for part, width in zip(parts, (8, 9, 13, 6), strict=True))
        print(f"{name:14}{parameters / 1e6:10,.0f} M{shown}{sum(parts) / GIB:8.1f}")


if __name__ == "__main__":
    main()
