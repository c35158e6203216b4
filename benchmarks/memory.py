"""Memory of training a decoder, by calculation: what each GPU holds, for sizes from 135 M to 8 B.

python benchmarks/memory.py
python benchmarks/memory.py --gpus 8 --rows 8 --length 1024 --recompute

`scdd plan` says the same, and more, of one recipe; `benchmarks/plan.py` measures beside it.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

from scdd.assemble.job import Job
from scdd.assemble.machines import GIB
from scdd.assemble.memory import memory
from scdd.models.options import DECODERS, LlamaConfig
from scdd.training.options import TrainingOptions


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


def main() -> None:
    """One line a size."""
    args = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    args.add_argument("--gpus", type=int, default=1, help="that share weights, gradients and moments (FSDP2)")
    args.add_argument("--rows", type=int, default=16, help="of one backward pass on each GPU (micro_batch_size)")
    args.add_argument("--length", type=int, default=512, help="tokens in a row")
    args.add_argument("--no-ema", action="store_true", help="without the moving average")
    args.add_argument("--recompute", action="store_true", help="training.recompute")
    args = args.parse_args()
    training = TrainingOptions(
        steps=1, batch_size=args.gpus * args.rows, ema=0.0 if args.no_ema else 0.999, recompute=args.recompute
    )
    print(f"GiB on each of {args.gpus} GPUs, {args.rows} rows of {args.length} tokens in a backward pass")
    print(f"{'':14}{'parameters':>12}{'state':>8}{'copies':>8}{'passing':>9}{'activations':>13}{'loss':>6}{'sum':>8}")
    for name, (config, size) in SIZES.items():
        sharing = "fsdp" if args.gpus > 1 else "none"
        job = Job(config, size, args.length, training, gpus=args.gpus, per_node=args.gpus, sharing=sharing)
        held = memory(job)
        state = held.weights + held.gradients + held.moments + held.average
        parts = (state, held.copies, held.passing, held.activations, held.loss)
        shown = "".join(f"{part / GIB:{width}.1f}" for part, width in zip(parts, (8, 8, 9, 13, 6), strict=True))
        print(f"{name:14}{job.parameters.total / 1e6:10,.0f} M{shown}{held.allocated / GIB:8.1f}")


if __name__ == "__main__":
    main()
