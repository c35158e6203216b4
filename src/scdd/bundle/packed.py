"""How a bundle stores its weights: as they are, in bfloat16, or the matrices in 8 bits or 4.

    int8   w[i, j] ≈ scale[i] · code[i, j],  code in −127 … 127;  codes under the weight's own name, scales beside them
    int4   w[i, j] ≈ scale[i, j // 32] · code[i, j],  code in −8 … 7, two to a byte, the even column in its lower half;
           tables of many rows (embedding, head) and matrices that are no multiple of 32 wide stay in 8 bits

Only the file is small: `folder.unpack` gives float32 back. What is computed in is another choice (`lm.loading`): by default a CPU that
can multiplies in 8 bits what was stored so, and in float32 all else.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from scdd.bundle.folder import GROUP, KINDS, MIDDLE, SCALE, SCALE4
from scdd.core.errors import UserError
from scdd.ops.int8 import TOP

SMALLEST = 4096  # numbers of a matrix worth 8 bits; all else is about a hundredth of a file
# Shares of a row's largest number at which it may be cut off: a finer step for all against the few largest. On Gaussian
# rows that takes 1 % off the error at a width of 1,000, and 3 % at 16,000. None is above 1, so that a row always uses
# its largest code, and packing once more changes nothing.
CUTS = (1.0, 0.995, 0.99, 0.985, 0.98, 0.97, 0.95, 0.92, 0.88)
# In 4 bits a group's number farthest from 0 has code −8, whose sign the scale takes on: sixteen codes serve, not fifteen.
CUTS4 = tuple(1 - 0.02 * step for step in range(16))
TABLE = 8  # a matrix of so many times more rows than columns is a table of tokens, looked up or multiplied by rows
PART = 1 << 20  # numbers searched at a time, which keeps them near the cache and the memory small


def pack(weights: Mapping[str, Tensor], kind: str) -> dict[str, Tensor]:
    """The tensors to store; see KINDS. "int8" and "int4" leave all but matrices of `SMALLEST` numbers or more as they are."""
    if kind not in KINDS:
        raise UserError(f'Weights cannot be stored as "{kind}": choose one of {", ".join(KINDS)}.')
    if kind == "float32":
        return dict(weights)
    packed: dict[str, Tensor] = {}
    for name, weight in weights.items():
        if name.endswith((SCALE, SCALE4)) or weight.dtype in (torch.int8, torch.uint8):
            raise UserError(f"{name} looks like a packed weight already: store these weights as float32.")
        if not weight.is_floating_point():
            packed[name] = weight
        elif kind == "bfloat16":
            packed[name] = weight.detach().to(torch.bfloat16)
        elif weight.dim() == 2 and weight.numel() >= SMALLEST:
            rows, columns = weight.shape
            four = kind == "int4" and columns % GROUP == 0 and rows < TABLE * columns
            packed[name], packed[name + (SCALE4 if four else SCALE)] = _rounded(name, weight.detach(), four)
        else:
            packed[name] = weight
    return packed


def apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors, each with memory of its own, as a file needs them; copied only where they have not."""
    seen: set[int] = set()
    whole: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        flat = tensor.detach().cpu().contiguous()
        storage = flat.untyped_storage()
        shared = storage.data_ptr() in seen or storage.nbytes() != flat.numel() * flat.element_size()
        seen.add(storage.data_ptr())
        whole[name] = flat.clone() if shared else flat
    return whole


def largest_change(before: Mapping[str, Tensor], after: Mapping[str, Tensor]) -> tuple[str, float]:
    """The matrix that moved most and by how much: ‖ŵ − w‖ / ‖w‖; ("", 0) where no matrix moved."""
    name, most = "", 0.0
    for each, weight in before.items():
        if weight.dim() != 2 or not weight.is_floating_point():
            continue
        norm = float(torch.linalg.vector_norm(weight.float()))
        moved = float(torch.linalg.vector_norm(after[each].float() - weight.float()))
        if moved > most * norm:
            name, most = each, moved / norm if norm else float("inf")
    return name, most


def _rounded(name: str, weight: Tensor, four: bool) -> tuple[Tensor, Tensor]:
    """Codes [R, C] int8 and scales [R] float32; or of `four` bits, [R, C/2] uint8 and [R, C/32] bfloat16."""
    rows = max(1, PART // weight.shape[1])
    work = _round_groups if four else _round_rows
    codes, scales = zip(*(work(part.float()) for part in torch.split(weight, rows)), strict=True)
    scale = torch.cat(scales)
    if not bool(scale.isfinite().all()):
        raise UserError(f"{name} holds numbers that are not finite: export an older checkpoint.")
    return torch.cat(codes), scale


def _round_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Each row with that scale of `CUTS` whose squared error is least."""
    full = rows.abs().amax(1, keepdim=True) / TOP
    # A row of zeros has no scale of its own and takes 1; NaN stays, to be seen by the caller.
    full = torch.where(full == 0, 1.0, full)
    best, scale = torch.full_like(full, torch.inf), full
    for cut in CUTS:
        tried = full * cut
        moved = _codes(rows, tried).mul_(tried).sub_(rows)
        error = moved.square_().sum(1, keepdim=True)
        scale = torch.where(error < best, tried, scale)
        best = torch.minimum(error, best)
    return _codes(rows, scale).to(torch.int8), scale.squeeze(1)


def _round_groups(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Each group of 32 in a row with that scale of `CUTS4` whose squared error is least, once rounded to bfloat16."""
    groups = rows.view(len(rows), -1, GROUP)
    farthest = groups.gather(2, groups.abs().argmax(2, keepdim=True))
    full = farthest / -MIDDLE
    full = torch.where(full.to(torch.bfloat16) == 0, 1.0, full)  # a group of zeros has no scale of its own
    best, scale = torch.full_like(full, torch.inf), full.to(torch.bfloat16).float()
    for cut in CUTS4:
        tried = (full * cut).to(torch.bfloat16).float()
        tried = torch.where(tried == 0, scale, tried)  # too small to be cut
        error = (_codes4(groups, tried) * tried - groups).square_().sum(2, keepdim=True)
        scale = torch.where(error < best, tried, scale)
        best = torch.minimum(error, best)
    codes = (_codes4(groups, scale) + MIDDLE).to(torch.uint8).view(len(rows), -1, 2)
    return codes[..., 0] | codes[..., 1] << 4, scale.squeeze(2).to(torch.bfloat16)


def _codes4(groups: Tensor, scale: Tensor) -> Tensor:
    """Whole numbers in −8 … 7, still in floating point."""
    return (groups / scale).round_().clamp_(-MIDDLE, MIDDLE - 1)


def _codes(rows: Tensor, scale: Tensor) -> Tensor:
    """Whole numbers in −127 … 127, still in floating point."""
    return (rows / scale).round_().clamp_(-TOP, TOP)
