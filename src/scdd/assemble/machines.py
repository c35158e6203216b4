"""GPUs that `scdd plan` knows, by the figures of their data sheets. Nothing here imports torch."""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

from scdd.core.errors import UserError

GIB = 2.0**30


@dataclass(frozen=True)
class Gpu:
    """What a GPU has. `memory` is what a program may have of it, a little less than the name says."""

    name: str
    memory: float  # GiB
    tflops: float  # bfloat16, dense, summed in float32
    bandwidth: float  # of its memory, TB/s
    link: float  # to the others of its machine, GB/s in each direction: NVLink, or PCIe

    @property
    def peak(self) -> float:
        """FLOP/s that a large product reaches."""
        return self.tflops * 1e12 * REACHED


REACHED = 782 / 989
"""Of the data sheet's figure, an 8192³ product of bfloat16: measured on an H200, and taken for the others."""

GPUS = {
    "b200": Gpu("NVIDIA B200", 178.0, 2250, 8.0, 900),
    "h200": Gpu("NVIDIA H200", 139.7, 989, 4.8, 450),
    "h100": Gpu("NVIDIA H100 SXM, 80 GB", 79.1, 989, 3.35, 450),
    "a100": Gpu("NVIDIA A100, 80 GB", 79.1, 312, 2.04, 300),
    "a100-40gb": Gpu("NVIDIA A100, 40 GB", 39.4, 312, 1.56, 300),
    "l40s": Gpu("NVIDIA L40S", 44.4, 362, 0.864, 32),
    "l4": Gpu("NVIDIA L4", 22.0, 121, 0.3, 32),
    "a10": Gpu("NVIDIA A10", 22.0, 125, 0.6, 32),
    "5090": Gpu("NVIDIA RTX 5090", 31.3, 209, 1.79, 64),
    "4090": Gpu("NVIDIA RTX 4090", 23.5, 165, 1.01, 32),
    "3090": Gpu("NVIDIA RTX 3090", 23.6, 71, 0.936, 32),
}


def find(name: str) -> Gpu:
    """The GPU of that name; "RTX 4090" and "NVIDIA-H100" are understood."""
    bare = name.lower().replace("nvidia", "").replace("rtx", "").strip(" -_").replace(" ", "-")
    if bare in GPUS:
        return GPUS[bare]
    near = get_close_matches(bare, GPUS, n=1)
    cure = f"did you mean {near[0]}?" if near else f"choose one of {', '.join(GPUS)}."
    raise UserError(f"gpu {name} is not known: {cure}", "gpu")
