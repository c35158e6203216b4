"""What a network costs by its shape alone: parameters, products, and what a backward pass keeps. Nothing here imports torch.

D width, H heads of d channels, K heads of keys and values, M the MLP's width, V tokens, L tokens in a row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from scdd.core.options import padded
from scdd.models.options import FREQUENCIES, MLP_RATIO, DiTConfig, LlamaConfig

Shape = DiTConfig | LlamaConfig
FLOAT = 4  # bytes of weights, statistics and sums
HALF = 2  # bytes of bfloat16
QUERIES = 128  # that `ops.documents.chunked` takes at a time
SHORT = range(16, 512 + 1)  # positions of a row that `ops.attention` takes
WIDTHS = (32, 64, 128)  # of heads that it takes


@dataclass(frozen=True)
class Parameters:
    """How many numbers are trained, by what they are. A head that shares the embedding's weights has none of its own."""

    embedding: int
    blocks: int
    head: int
    rest: int  # the last norm, and what a DiT makes of the time

    @property
    def total(self) -> int:
        """All of them."""
        return self.embedding + self.blocks + self.head + self.rest

    @property
    def outer(self) -> int:
        """Those that belong to no block."""
        return self.total - self.blocks


def matrices(shape: Shape) -> dict[str, tuple[int, int]]:
    """Rows and columns of a block's matrices from activations to activations, by name."""
    width = shape.width
    if isinstance(shape, DiTConfig):
        inner = MLP_RATIO * width
        return {"qkv": (3 * width, width), "out": (width, width), "mlp_in": (inner, width), "mlp_out": (width, inner)}
    mixed = shape.heads * shape.head_width
    return {
        "qkv": (mixed + 2 * shape.kv_heads * shape.head_width, width),
        "out": (width, mixed),
        "mlp_in": (2 * shape.mlp_width, width),
        "mlp_out": (width, shape.mlp_width),
    }


def matrix_weights(shape: Shape) -> int:
    """Weights of the matrices of all blocks."""
    return shape.depth * sum(rows * columns for rows, columns in matrices(shape).values())


def parameters(shape: Shape, vocab: int) -> Parameters:
    """The network's parameters for a vocabulary of so many ids, the mask included."""
    width, of_block = shape.width, matrices(shape)
    block = matrix_weights(shape) // shape.depth + 2 * width  # two norms
    if isinstance(shape, DiTConfig):
        cond = shape.cond_width
        block += MLP_RATIO * width + width + (cond + 1) * 6 * width  # biases of the MLP, modulation
        rest = (FREQUENCIES + 1) * cond + (cond + 1) * cond + width + (cond + 1) * 2 * width
        head = padded(vocab) * (width + 1) + int(shape.input_bias)
        return Parameters(vocab * width, shape.depth * block, head, rest)
    biased = {"qkv": shape.qkv_bias, "out": shape.out_bias, "mlp_in": shape.mlp_bias, "mlp_out": shape.mlp_bias}
    block += sum(of_block[name][0] for name, has in biased.items() if has)
    block += 2 * shape.head_width * shape.qk_norm
    rows, head = (padded(vocab), 0) if shape.tied else (vocab, padded(vocab) * width)
    return Parameters(rows * width, shape.depth * block, head, width)


def flops(shape: Shape, vocab: int, length: int, recompute: bool = False) -> float:
    """Multiplications and additions of products for one token of training: forward, backward, and the head's.

    Two a weight forward and four backward; attention's two products with each of L keys, of which a causal network needs
    half, and one with a window those that are near. What is recomputed is the blocks' products once more, but for attention,
    which is kept, and each block's last, whose result nobody needs.
    """
    mixed = shape.heads * shape.head_width
    keys = sum(each.queries * each.keys for each in pieces(shape, length)) / length or length
    attention = 12 * shape.depth * keys * mixed / (2 if shape.causal else 1)
    rows, columns = matrices(shape)["mlp_out"]
    again = 2 * (matrix_weights(shape) - shape.depth * rows * columns) if recompute else 0
    return 6 * (matrix_weights(shape) + padded(vocab) * shape.width) + attention + again


class Piece(NamedTuple):
    """Queries that go together, the keys that they are multiplied with, and how many of those had to be copied for it."""

    queries: int
    keys: int
    copied: int


def pieces(shape: Shape, length: int) -> list[Piece]:
    """As `ops.documents.chunked` goes through a row that is longer than the network's window; none where it is not."""
    window = shape.attention_window if isinstance(shape, LlamaConfig) else None
    if window is None or length <= window + 1:
        return []
    made = []
    for start in range(0, length, QUERIES):
        stop = min(start + QUERIES, length)
        keys = min(length, stop + window) - max(0, start - window)
        made.append(Piece(stop - start, keys + 1, keys + 1) if start > window else Piece(stop - start, keys, 0))
    return made


# -- what a backward pass keeps -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Keeping:
    """How a network is run, as far as it decides what a backward pass keeps."""

    half: int = HALF  # bytes of an activation
    fused: bool = True  # ops.norm and ops.swiglu are kernels, as on a GPU; in plain torch they keep more
    recompute: bool = False
    products: bool = False  # of gated MLPs, which the fused backward pass makes again otherwise
    adapted: frozenset[str] = frozenset()  # matrices with LoRA's factors: kernels that multiply by them are not taken
    length: int = 0  # of rows: short ones have kernels of their own, ones beyond a network's window go in pieces
    masked: bool = False  # attention has a mask, or looks one way, in some steps at least
    narrow: bool = False  # products in FP8, beside which `ops.attention` and `ops.swiglu` are not taken


def kept(shape: Shape, how: Keeping = Keeping()) -> float:  # noqa: B008 (frozen)
    """Bytes that the forward pass leaves for the backward pass, for each token."""
    half = how.half
    last = _seam(shape.width, how)
    if not how.recompute:
        return shape.depth * whole_block(shape, how) + last
    # A block's input is the stream and what is to be added to it (the first has the stream alone); attention's output is not
    # computed again; and one block at a time is whole.
    inputs = 2 * shape.width * half + shape.heads * (shape.head_width * half + FLOAT)
    return shape.depth * inputs - shape.width * half + last + whole_block(shape, how)


def passed(shape: Shape, how: Keeping) -> float:
    """Bytes of a token in proportion to which a forward and a backward pass read and write: what they would keep if nothing were
    recomputed, but for gated products, which are made and read whether they are kept or not."""
    return shape.depth * whole_block(shape, replace(how, products=False)) + _seam(shape.width, how)


def whole_block(shape: Shape, how: Keeping) -> float:
    """What one block keeps of a token if nothing is recomputed."""
    mixed = shape.heads * shape.head_width
    keys = mixed if isinstance(shape, DiTConfig) else shape.kv_heads * shape.head_width
    # Values are a view of what qkv gave, so all of that stays, and attention's output; and beside them the turned queries and keys,
    # where no kernel turns them in place.
    attention: float = (mixed + 2 * keys) + mixed + (0 if attends_at_once(shape, how) else mixed + keys)
    if parts := pieces(shape, how.length):  # whose outputs are joined
        attention += mixed + 2 * keys * sum(each.copied for each in parts) / how.length
    if isinstance(shape, DiTConfig):
        mlp = 2 * MLP_RATIO * shape.width  # before and after GELU
        gated = ("out", "mlp_out")  # what the gates multiply, unless they are folded into the matrix
        mlp += shape.width * sum(shape.time_conditioning or name in how.adapted for name in gated)
    else:
        lean = how.fused and not ("mlp_out" in how.adapted or how.narrow)
        mlp = shape.mlp_width * (2 + how.products if lean else 4)
    norms = 2 * _seam(shape.width, how)
    if isinstance(shape, LlamaConfig) and shape.qk_norm and not how.fused:
        norms += (mixed + keys) * (FLOAT + FLOAT * (how.half != FLOAT))
    return norms + how.half * (attention + mlp) + FLOAT * shape.heads  # and attention's normalisers


def attends_at_once(shape: Shape, how: Keeping) -> bool:
    """Whether training takes the kernels of `ops.attention`, as `models.attention.fuses` decides it on a GPU."""
    if isinstance(shape, LlamaConfig) and (shape.qk_norm or pieces(shape, how.length)):
        return False
    other = shape.causal or how.masked or "qkv" in how.adapted or how.narrow or how.recompute
    return how.length in SHORT and shape.head_width in WIDTHS and how.fused and how.half == HALF and not other


def _seam(width: int, how: Keeping) -> int:
    """The residual sum and its norm: two rows; in plain torch the norm before its scale as well, in float32."""
    return width * (2 * how.half if how.fused else how.half + 2 * FLOAT)
