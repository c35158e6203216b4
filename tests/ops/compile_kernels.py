"""Compile every Triton kernel for a Hopper GPU, which needs none: run as a script by test_compile.py.

The interpreter forgives what the compiler does not (types that change in a loop, say), so CI does both.
"""

from __future__ import annotations

import itertools

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from scdd.ops.attention import triton as attention
from scdd.ops.barred import triton as barred
from scdd.ops.bookkeeping import triton as bookkeeping
from scdd.ops.documents import triton as documents
from scdd.ops.elbo import triton as elbo
from scdd.ops.fp8 import triton as fp8
from scdd.ops.gelu import triton as gelu
from scdd.ops.head import triton as head
from scdd.ops.head import triton_draw as redraw
from scdd.ops.norm import triton as norm
from scdd.ops.outcome import triton as outcome
from scdd.ops.rotary import triton as rotary
from scdd.ops.swiglu import triton as swiglu
from scdd.ops.swiglu import triton_gate as gate
from scdd.ops.transition import triton as transition
from scdd.ops.update import triton as update

HOPPER, ADA = GPUTarget("cuda", 90, 32), GPUTarget("cuda", 89, 32)
SHARED = 101_376  # bytes of shared memory that a program may have on the smallest of today's GPUs


def build(
    kernel: triton.JITFunction,
    types: dict[str, str],
    constants: dict[str, object],
    warps: int,
    stages: int | None = None,
) -> None:
    """`stages`: also for a GPU with less shared memory, in which that many loads in flight must fit."""
    signature = {name: types.get(name, "constexpr") for name in kernel.arg_names}
    options = {"num_warps": warps} if stages is None else {"num_warps": warps, "num_stages": stages}
    triton.compile(ASTSource(kernel, signature, constants), target=HOPPER, options=options)
    if stages is not None:
        made = triton.compile(ASTSource(kernel, signature, constants), target=ADA, options=options)
        assert made.metadata.shared <= SHARED, made.metadata.shared


def main() -> None:
    rows = dict.fromkeys(
        ("log_r_", "log_r_t_", "w_x_", "w_z_", "w_o_", "w_t_", "w_e_", "input_bias_", "losses"), "*fp32"
    )
    ids = {"x_ids": "*i64", "z_ids": "*i64", "stride": "i32", "mask_id": "i32"}
    for dtype, bias, grad in itertools.product(("*bf16", "*fp32"), (False, True), (False, True)):
        block, full, tail = elbo.cut(50304, elbo.BLOCK)
        constants = {"COLUMNS": 50304, "HAS_INPUT_BIAS": bias, "WITH_GRAD": grad}
        constants |= {"BLOCK": block, "FULL": full, "TAIL": tail}
        build(elbo._row_loss, {"logits": dtype, **ids, **rows}, constants, elbo.WARPS)
    numbers = dict.fromkeys(("top_p", "top_k", "least", "scale"), "fp32")
    stats = {"input_bias_": "*fp32", "log_total": "*fp32", "log_p_z": "*fp32", "mask_id": "i32"}
    draws = {"input_bias_": "*fp32", "uniforms": "*fp64", "moves": "*i1", "tokens": "*i64", "log_p": "*fp32"}
    draws |= {"other_": "*i64", "other_log_p_": "*fp32"}
    common = {"z_ids": "*i64", "stride": "i32", **numbers}
    for (dtype, bits), top_p, top_k in itertools.product((("*bf16", 16), ("*fp32", 32)), (False, True), (False, True)):
        constants = {"COLUMNS": 50304, "KEY_BITS": bits, "HAS_INPUT_BIAS": bits == 32, "TOP_P": top_p, "TOP_K": top_k}
        constants["SCALES"] = top_p != top_k  # each row its own temperature
        common["scale"] = "*fp64" if constants["SCALES"] else "fp32"
        constants["GUESS"] = not top_k
        build(head._row_stats, {"logits": dtype, **common, **stats}, {**constants, "BLOCK": head.BLOCK}, head.WARPS)
        constants |= {
            "OTHERWISE": top_p,
            "BLOCK": redraw.BLOCK,
            "BLOCKS": triton.next_power_of_2(triton.cdiv(50304, redraw.BLOCK)),
        }
        build(redraw._row_draw, {"logits": dtype, **common, **draws}, constants, redraw.WARPS)
    numbers = dict.fromkeys(("keep", "step", "spread", "beta1_rest", "beta2", "beta2_rest", "epsilon", "pull"), "fp32")
    tables = {"table": "*i64", "sizes": "*i64", "owners": "*i32", "numbers": "*i32", "scale_": "*fp32"}
    for shadow, aligned in itertools.product((False, True), repeat=2):
        constants = {"HAS_SHADOW": shadow, "ALIGNED": aligned, "BLOCK": update.BLOCK}
        build(update._update, {**tables, **numbers, "tensors": "i32"}, constants, update.WARPS)
    for dtype in ("*bf16", "*fp32"):
        types = {"x_": dtype, "cos_": "*fp32", "sin_": "*fp32", "stride": "i32", "length": "i32"}
        for every, turned in ((36, 24), (15, 12)):
            build(rotary._rotate, types, {"EVERY": every, "TURNED": turned, "PAIRS": 32, "BLOCK": 1024}, rotary.WARPS)
    sides = dict.fromkeys(("q_", "k_", "v_", "out_"), "*bf16")
    sizes = {name: "i32" for name in documents._attention.arg_names if name.islower() and not name.endswith("_")}
    for width, length, packed, causal in ((64, 136, True, False), (80, 40, True, True), (64, 128, False, True)):
        own = documents.shape(3 * length, length, width, half=True)
        constants = {"GROUPS": 3, "WIDTH": width, "WIDE": triton.next_power_of_2(width), "IDS": documents.IDS}
        constants |= {"QUERIES": own.queries, "KEYS": own.keys, "REST": documents._rest(length, own.keys)}
        constants |= {"PACKED": packed, "CAUSAL": causal, "SKIPS": packed}
        types = {**sides, **sizes, "ids_": "*i64", "scale": "fp32"}
        build(documents._attention, types, constants, own.warps)
    around_a_step()
    parts = {f"{name}_": "*fp64" for name in ("keep", "model", "uniform", "mask", "which")}
    strides = {f"{name}_{axis}": "i32" for name in ("keep", "model", "uniform", "mask") for axis in "rc"}
    ids = {
        "z_": "*i64",
        "other_": "*i64",
        "keys": "*i64",
        "calls": "*i64",
        "after_": "*i64",
        "columns": "i32",
        "mask_id": "i32",
        "K": "i32",
    }
    more = {"updatable_": "*i1", "drawn_": "*i1", "log_p_": "*fp32"}
    build(outcome._outcomes, {**parts, **strides, **ids, **more}, {"BLOCK": outcome.BLOCK}, outcome.WARPS)
    ids = {"z_": "*i64", "log_p_": "*fp32", "parts": "*fp64"}
    for name in (f"{level}_{time}" for level in ("gamma", "rho", "hidden", "noise") for time in "st"):
        ids |= {f"{name}_": "*fp64", f"{name}_r": "i32"}
    ids |= dict.fromkeys(("size", "columns", "mask_id", "K"), "i32")
    for mixing in (False, True):
        build(transition._transition, ids, {"MIXING": mixing, "BLOCK": transition.BLOCK}, transition.WARPS)
    sides = ("x_", "delta_", "total_", "normal_", "d_total_", "d_normal_", "d_x_")
    affine = ("scale_", "shift_", "d_scale_", "d_shift_")
    for dtype in ("*bf16", "*fp32"):
        types = {**dict.fromkeys(sides, dtype), **dict.fromkeys(affine, "*fp32"), "group": "i32", "shares": "i32"}
        kernels = (
            (norm._rows_forward, {"ADD": True, "BLOCK": 1024}),
            (norm._rows_forward, {"ADD": False, "BLOCK": 1024}),
            (norm._rows_backward, {"EACH": 16, **norm._split(768)}),
        )
        for (kernel, more), centred in itertools.product(kernels, (False, True)):
            known = {k: v for k, v in types.items() if k in kernel.arg_names}
            constants = {"EPS": 1e-6, "CENTRED": centred, "WIDTH": 768, **more}
            build(kernel, known, constants, norm.WARPS)
        for kernel, more in (
            (swiglu._product, {}),
            (swiglu._product_backward, {"AGAIN": False}),
            (swiglu._product_backward, {"AGAIN": True}),
        ):
            known = {name: dtype for name in kernel.arg_names if name.endswith("_")}
            build(kernel, known, {"WIDTH": 1536, "BLOCK": swiglu.BLOCK, **more}, swiglu.WARPS)
        types = {
            **dict.fromkeys(("x_", "y_", "d_", "d_x_"), dtype),
            "bias_": "*fp32",
            "d_bias_": "*fp32",
            "rows": "i32",
        }
        for kernel, more in ((gelu._gelu, {}), (gelu._gelu_backward, {"EACH": 16})):
            known = {name: kind for name, kind in types.items() if name in kernel.arg_names}
            build(kernel, known, {"WIDTH": 3072, "ROWS": gelu.ROWS, "BLOCK": gelu.BLOCK, **more}, gelu.WARPS)
    for shape, bias in itertools.product((gate.MANY, gate.FEW), (False, True)):
        types = {**dict.fromkeys(("x_", "weight_", "bias_", "product_"), "*bf16"), "count": "i32"}
        constants = {"WIDTH": 1536, "CHANNELS": 576, "BIAS": bias, "DEPTH": gate.DEPTH, "BESIDE": gate.BESIDE}
        build(
            gate._gated_linear,
            types,
            {**constants, "ROWS": shape.rows, "COLUMNS": shape.columns},
            shape.warps,
            shape.stages,
        )
    attend()
    narrow()


def around_a_step() -> None:
    ids = dict.fromkeys(("tokens", "counts", "nfe", "calls", "at"), "*i64") | {"updatable": "*i1", "done": "*i1"}
    ids |= {"log_p": "*fp32", "when_drawn": "*fp32"}
    types = {**{f"{name}_": kind for name, kind in ids.items()}, **{f"to_{name}": kind for name, kind in ids.items()}}
    types |= {"new_": "*i64", "standing_": "*fp32", "finished_": "*i1", "new_calls_": "*i64", "pace_": "*i64"}
    types |= {"moved_": "*i8", "columns": "i32", "mask_id": "i32"}
    for new, ends, block in (("*fp32", False, 16), ("*fp64", True, bookkeeping.BLOCK)):
        build(bookkeeping._record, {**types, "new_log_p_": new}, {"ENDS": ends, "BLOCK": block}, bookkeeping.WARPS)
    types = {"reals_": "*fp64", "numbers_": "*i64", "at_": "*i64", "heat_": "*fp64", "columns": "i32"}
    types |= {"to_reals": "*fp64", "to_numbers": "*i64", "to_heat": "*fp64"}
    for heats in (False, True):
        constants = {"REALS": 14, "NUMBERS": 3, "WIDTH": 16, "HEATS": heats, "BLOCK": bookkeeping.BLOCK}
        build(bookkeeping._lookup, types, constants, bookkeeping.WARPS)
    sizes = dict.fromkeys(("rows", "mask_id", "size"), "i32")
    for kind, made in itertools.product(("*fp32", "*bf16", "*fp64"), repeat=2):
        for given in (False, True):
            constants = {"GIVEN": given, "BLOCK": barred.BLOCK}
            build(barred._barred, {"bias_": kind, "made_": made, **sizes}, constants, barred.WARPS)


def narrow() -> None:
    sizes = {"size": "i32", "each": "i32", "rows": "i32", "columns": "i32", "parts": "i32"}
    types = {**sizes, "parts_": "*i32", "step_": "*fp32"}
    for dtype, (codes, top), turned in itertools.product(
        ("*bf16", "*fp32"), (("*fp8e4nv", 8), ("*fp8e5", 15)), (False, True)
    ):
        types |= {"x_": dtype, "codes_": codes, "turned_": codes if turned else dtype}
        shape = {"PARTS": fp8.PARTS, "ROWS": fp8.ROWS, "COLUMNS": fp8.COLUMNS}
        for kernel, constants, warps in (
            (fp8._maxima, {"BLOCK": fp8.BLOCK}, fp8.WARPS),
            (fp8._codes, {"TOP": top, "TURNED": turned, **shape}, fp8.TILE_WARPS),
        ):
            build(kernel, {name: kind for name, kind in types.items() if name in kernel.arg_names}, constants, warps)


def attend() -> None:
    types = dict.fromkeys(("qkv_", "mixed_", "d_mixed_", "d_qkv_"), "*bf16")
    types |= {**dict.fromkeys(("sums_", "dots_", "cos_", "sin_"), "*fp32"), "length": "i32"}
    common = {"HEADS": 9, "KV_HEADS": 3, "WIDTH": 64}
    turning = {"qkv_": "*bf16", "cos_": "*fp32", "sin_": "*fp32", "length": "i32", "count": "i32"}
    build(attention._turn, turning, {**common, "BLOCK": attention.TURNED}, attention.TURNING_WARPS)
    for kernel, shape in (
        (attention._mix, attention.FORWARD),
        (attention._mix_backward_queries, attention.QUERIES),
        (attention._mix_backward_keys, attention.KEYS),
    ):
        for even in (False, True):
            constants = {**common, "SCALE": 0.125, "QUERIES": shape.queries, "KEYS": shape.keys, "EVEN": even}
            known = {name: kind for name, kind in types.items() if name in kernel.arg_names}
            build(kernel, known, constants, shape.warps)


if __name__ == "__main__":
    main()
