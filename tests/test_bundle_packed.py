"""Weights in bfloat16, in 8 bits and in 4: what comes back, how far it may lie from what went in, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from scdd.bundle import packed
from scdd.bundle.folder import GROUP, SCALE, SCALE4, Identity, read, sha256_of, unpack, write
from scdd.bundle.packed import SMALLEST, TOP, largest_change, pack
from scdd.core.errors import UserError
from scdd.core.types import Vocab
from scdd.models.dit import DiT
from scdd.models.heads import QualityHead
from scdd.models.options import SIZES

VOCAB = Vocab(300, 299)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def nano() -> DiT:
    generator = torch.Generator().manual_seed(1)
    model = DiT(SIZES["nano"], VOCAB, generator)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "modulation" in name or name.startswith("output."):  # zero at the start, which would hide every error
                parameter.normal_(0.0, 0.1, generator=generator)
    return model.eval()


def rows(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A matrix in 8 bits and back: ŵ, codes, scales."""
    stored = pack({"w": matrix}, "int8")
    return unpack(stored)["w"], stored["w"], stored["w" + SCALE]


def save(folder: Path, weights: dict[str, Tensor], kind: str) -> Path:
    return write(folder, Identity(recipe="name: x\n", vocab=VOCAB), weights, kind=kind)


def change_meta(folder: Path, **changes: object) -> None:
    """Set keys of meta.json, or take out those that are None."""
    meta = json.loads((folder / "meta.json").read_text()) | changes
    kept = {k: v for k, v in meta.items() if v is not None or k not in changes}
    (folder / "meta.json").write_text(json.dumps(kept))


def replace_tensors(folder: Path, tensors: dict[str, Tensor]) -> None:
    """Other content under a right checksum, so that only the content can give it away."""
    save_file(tensors, folder / "model.safetensors")
    change_meta(folder, weights_sha256=sha256_of(folder / "model.safetensors"))


# -- rows --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(40, 128), (64, 1000), (5, 4096), (4096, 1)])
def test_each_number_moves_by_half_a_step_at_most_unless_its_row_was_cut(shape: tuple[int, int]) -> None:
    matrix = randn(*shape) * torch.logspace(-6, 3, shape[0])[:, None]
    back, codes, scale = rows(matrix)
    assert (codes.dtype, scale.dtype, back.dtype) == (torch.int8, torch.float32, torch.float32)
    assert scale.shape == (shape[0],)
    assert int(codes.abs().amax()) == TOP
    step = scale[:, None]
    moved = (back - matrix).abs()
    whole = matrix.abs() <= TOP * step
    assert bool((moved <= 0.50002 * step)[whole].all())
    assert bool(((codes.abs() == TOP) & (codes.sign() == matrix.sign()))[~whole].all())
    assert float(whole.float().mean()) > 0.99


@pytest.mark.parametrize("width", [64, 512, 2048])
def test_gaussian_rows_keep_to_one_per_cent_and_cutting_never_does_harm(width: int) -> None:
    matrix = randn(256, width) * torch.logspace(-2, 2, 256)[:, None]
    back = rows(matrix)[0]
    plain_step = matrix.abs().amax(1, keepdim=True) / TOP
    plain = (matrix / plain_step).round() * plain_step
    error, uncut = ((each - matrix).norm(dim=1) / matrix.norm(dim=1) for each in (back, plain))
    assert float(error.square().mean().sqrt()) < 0.01
    assert bool((error <= uncut * 1.00001).all())
    assert float(error.mean()) < 0.995 * float(uncut.mean())  # and it does some good


def test_a_row_of_zeros_and_a_row_with_one_outlier_do_not_disturb_the_others() -> None:
    matrix = randn(6, 1024)
    matrix[1] = 0.0
    alone = rows(matrix)[0]
    matrix[3, 7] = -1000.0
    matrix[5] = 0.0
    matrix[5, 0] = 3.0
    back, codes, _ = rows(matrix)
    assert torch.equal(back[1], torch.zeros(1024))
    assert torch.equal(back[[0, 2, 4]], alone[[0, 2, 4]])
    assert float(back[3, 7]) == pytest.approx(-1000.0)  # cutting the outlier would cost more than the rest weighs
    assert float((back[3] - matrix[3]).abs().amax()) <= 0.50002 * 1000 / TOP
    assert float(back[5, 0]) == pytest.approx(3.0)
    assert int(codes[5].count_nonzero()) == 1


@given(
    st.lists(st.floats(-(2.0**120), 2.0**120, width=32), min_size=1, max_size=8),
    st.sampled_from([1.0, 2.0**-120, 2.0**-240]),
)
def test_no_row_is_too_large_or_too_small(values: list[float], size: float) -> None:
    matrix = (torch.tensor(values, dtype=torch.float64).repeat(SMALLEST) * size).float().view(SMALLEST, -1)
    back, _, scale = rows(matrix)
    assert bool(back.isfinite().all())
    assert bool((scale > 0).all())
    assert float((back - matrix).abs().amax()) <= 0.005 * float(matrix.abs().amax()) + 2e-43  # the last subnormals


def test_a_matrix_worked_on_in_parts_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = randn(70, 100)
    whole = rows(matrix)
    monkeypatch.setattr(packed, "PART", 1100)  # six parts of eleven rows, and one of four
    assert all(torch.equal(one, other) for one, other in zip(whole, rows(matrix), strict=True))


def test_packing_what_was_packed_changes_nothing() -> None:
    back, codes, _ = rows(randn(64, 3000))
    again, codes_again, _ = rows(back)
    assert torch.equal(codes, codes_again)
    assert torch.allclose(back, again, rtol=1e-6, atol=0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_numbers_that_are_not_finite_are_refused(bad: float) -> None:
    matrix = randn(64, 64)
    matrix[5, 5] = bad
    with pytest.raises(UserError, match=r"output\.weight holds numbers that are not finite"):
        pack({"output.weight": matrix}, "int8")


# -- groups of four bits ------------------------------------------------------------------------------------------------


def groups(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A matrix in 4 bits and back: ŵ, codes two to a byte, scales."""
    stored = pack({"w": matrix}, "int4")
    return unpack(stored)["w"], stored["w"], stored["w" + SCALE4]


def test_codes_and_scales_mean_what_the_format_says() -> None:
    """ŵ[i, j] = scale[i, j // 32] · (nibble − 8), number by number."""
    back, codes, scale = groups(randn(40, 128))
    assert (codes.shape, codes.dtype) == ((40, 64), torch.uint8)
    assert (scale.shape, scale.dtype) == ((40, 4), torch.bfloat16)
    for i, j in ((0, 0), (3, 1), (17, 66), (39, 127)):
        byte = int(codes[i, j // 2])
        code = (byte >> 4 if j % 2 else byte & 15) - 8
        assert float(back[i, j]) == float(scale[i, j // GROUP]) * code


def test_each_group_has_the_best_of_its_scales() -> None:
    """Against every scale of the list, tried one by one, and plain rounding to the largest number."""
    matrix = randn(64, 64) * torch.logspace(-6, 3, 64)[:, None]
    back, _, scale = groups(matrix)
    for row, ours, kept in zip(matrix.double(), back.double(), scale.double(), strict=True):
        for group, found, own in zip(row.split(GROUP), ours.split(GROUP), kept, strict=True):
            full = float(group[group.abs().argmax()]) / -8
            tried = [float(torch.tensor(full * cut).to(torch.bfloat16)) for cut in packed.CUTS4]
            errors = [float(((group / s).round().clamp(-8, 7) * s - group).square().sum()) for s in tried]
            assert float(own) in tried
            assert float((found - group).square().sum()) == pytest.approx(min(errors), rel=1e-3)
    error = (back - matrix).norm(dim=1) / matrix.norm(dim=1)
    assert 0.05 < float(error.mean()) < 0.1


@settings(max_examples=25)
@given(
    st.lists(st.floats(-(2.0**120), 2.0**120, width=32), min_size=GROUP, max_size=GROUP),
    st.sampled_from([1.0, 2.0**-120, 2.0**-240]),
)
def test_no_group_is_too_large_or_too_small_and_packing_twice_changes_nothing(values: list[float], size: float) -> None:
    matrix = (torch.tensor(values, dtype=torch.float64) * size).float().repeat(128, 1)
    back, _, scale = groups(matrix)
    assert bool(back.isfinite().all())
    assert bool((scale != 0).all())
    rounded_off = 1e-38  # 2⁻¹²⁶ and below
    assert float((back - matrix).abs().amax()) <= 0.4 * float(matrix.abs().amax()) + rounded_off
    again, _, _ = groups(back)
    torch.testing.assert_close(again, back, rtol=1e-6, atol=1e-38)


def test_tables_and_odd_widths_keep_eight_bits() -> None:
    weights = {"table": randn(512, 64), "odd": randn(70, 100), "matrix": randn(511, 64), "small": randn(32, 32)}
    stored = pack(weights, "int4")
    assert {name for name in stored if name.endswith(SCALE4)} == {"matrix" + SCALE4}
    assert {name for name in stored if name.endswith(SCALE)} == {"table" + SCALE, "odd" + SCALE}
    assert torch.equal(stored["small"], weights["small"])
    assert torch.equal(unpack(stored)["table"], unpack(pack(weights, "int8"))["table"])


# -- whole models ------------------------------------------------------------------------------------------------------


def mixed() -> dict[str, Tensor]:
    base = randn(96, 64, seed=2)
    return {
        "large.weight": base,
        "tied.weight": base,
        "turned.weight": base.T,
        "half.weight": base.to(torch.bfloat16),
        "small.weight": randn(63, 65, seed=3),
        "long.bias": randn(9000, seed=4),
        "cube": randn(20, 20, 20, seed=5),
        "number": torch.tensor(0.1),
        "count": torch.tensor([3, 4]),
    }


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int8", "int4"])
def test_round_trip_through_a_folder(tmp_path: Path, kind: str) -> None:
    weights = mixed()
    folder = save(tmp_path / "run", weights, kind)
    found, file = read(folder), load_file(folder / "model.safetensors")
    assert found.kind == kind == json.loads((folder / "meta.json").read_text())["weights"]
    assert found.weights.keys() == weights.keys()
    assert torch.equal(found.weights["count"], weights["count"])
    assert found.weights["count"].dtype == torch.int64
    matrices = {"large.weight", "tied.weight", "turned.weight", "half.weight"}
    for name in weights.keys() - {"count"}:
        given, back, stored = weights[name], found.weights[name], file[name]
        assert back.shape == given.shape
        if kind == "float32":
            assert stored.dtype == back.dtype == given.dtype
            assert torch.equal(back, given)
        elif kind == "bfloat16":
            assert (stored.dtype, back.dtype) == (torch.bfloat16, torch.float32)
            assert torch.equal(back, given.to(torch.bfloat16).float())
        elif kind == "int4" and name in matrices:
            assert (stored.dtype, back.dtype) == (torch.uint8, torch.float32)
            assert 0.02 < float((back - given.float()).norm() / given.float().norm()) < 0.1
        elif name in matrices:
            assert (stored.dtype, back.dtype) == (torch.int8, torch.float32)
            assert 1e-4 < float((back - given.float()).norm() / given.float().norm()) < 0.01
        else:
            assert (stored.dtype, back.dtype) == (torch.float32, torch.float32)
            assert torch.equal(back, given)
    scales, ends = {name for name in file if ":" in name}, {"int8": SCALE, "int4": SCALE4}
    assert scales == ({name + ends[kind] for name in matrices} if kind in ends else set())


def test_logits_in_8_bits_stay_near_and_broken_scales_do_not(tmp_path: Path) -> None:
    model = nano()
    tokens = torch.randint(0, VOCAB.size, (2, 48), generator=torch.Generator().manual_seed(5))

    def distance(weights: dict[str, Tensor]) -> float:
        """Of the logits of ordinary tokens, relative to their spread."""
        other = DiT(SIZES["nano"], VOCAB).eval()
        other.load_state_dict(weights)
        with torch.no_grad():
            ours, theirs = (each.logits(tokens)[..., : VOCAB.mask_id] for each in (model, other))
        return float((ours - theirs).norm() / (ours - ours.mean(-1, keepdim=True)).norm())

    folder = save(tmp_path / "run", model.state_dict(), "int8")
    found = read(folder)
    assert distance(found.weights) < 0.02
    assert distance(read(save(tmp_path / "half", model.state_dict(), "bfloat16")).weights) < 0.02
    assert (folder / "model.safetensors").stat().st_size < 0.30 * sum(
        4 * weight.numel() for weight in model.state_dict().values()
    )

    stored = load_file(folder / "model.safetensors")
    shifted = {k: v.roll(1) if k.endswith(SCALE) else v for k, v in stored.items()}  # each row with another's scale
    assert distance(unpack(shifted)) > 0.06
    coarse = {k: v // 16 * 16 if v.dtype == torch.int8 else v for k, v in stored.items()}  # 4 bits
    assert distance(unpack(coarse)) > 0.06


def test_the_quality_head_travels_with_the_network(tmp_path: Path) -> None:
    head = QualityHead(128, generator=torch.Generator().manual_seed(3))
    torch.nn.init.normal_(head.last.weight)
    weights = nano().state_dict() | {f"quality.{name}": value for name, value in head.state_dict().items()}
    found = read(save(tmp_path / "run", weights, "int8")).weights
    assert found.keys() == weights.keys()
    back = QualityHead(128)
    back.load_state_dict({k.removeprefix("quality."): v for k, v in found.items() if k.startswith("quality.")})
    states = randn(50, 128)
    with torch.no_grad():
        difference = float((back(states) - head(states)).norm() / head(states).norm())
    assert 0 < difference < 0.02
    assert torch.equal(found["quality.last.weight"], weights["quality.last.weight"])  # too small for 8 bits


def test_largest_change_names_the_matrix() -> None:
    before = {"a": torch.ones(2, 2), "b": torch.full((2, 2), 2.0), "bias": torch.ones(4), "zero": torch.zeros(2, 2)}
    assert largest_change(before, before) == ("", 0.0)
    after = before | {"a": before["a"] * 1.1, "b": before["b"] * 1.2, "bias": torch.zeros(4)}
    name, share = largest_change(before, after)
    assert (name, share) == ("b", pytest.approx(0.2, rel=1e-5))
    assert largest_change(before, after | {"zero": torch.ones(2, 2)}) == ("zero", float("inf"))


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_a_folder_older_than_the_question_loads(tmp_path: Path) -> None:
    weights = mixed()
    folder = save(tmp_path / "run", weights, "float32")
    change_meta(folder, weights=None)
    assert "weights" not in json.loads((folder / "meta.json").read_text())
    found = read(folder)
    assert found.kind == "float32"
    assert all(torch.equal(found.weights[name], weights[name]) for name in weights)
    assert found.weights["half.weight"].dtype == torch.bfloat16  # as it was, not unpacked


@pytest.mark.parametrize("kind", ["int2", 7, ["int8"]])
def test_an_unknown_kind_asks_for_an_upgrade(tmp_path: Path, kind: object) -> None:
    folder = save(tmp_path / "run", mixed(), "int8")
    change_meta(folder, weights=kind)
    with pytest.raises(UserError, match=r"reads float32, bfloat16, int8, int4: upgrade scdd"):
        read(folder)


def test_an_unknown_kind_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(UserError, match='"int2": choose one of float32, bfloat16, int8, int4'):
        save(tmp_path / "run", mixed(), "int2")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", ["bfloat16", "int8", "int4"])
def test_damage_is_noticed(tmp_path: Path, kind: str) -> None:
    file = save(tmp_path / "run", mixed(), kind) / "model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(UserError, match=r"model\.safetensors is damaged \(its checksum"):
        read(tmp_path / "run")
    file.write_bytes(content[:-100])
    with pytest.raises(UserError, match=r"model\.safetensors is damaged"):
        read(tmp_path / "run", verify=False)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("large.weight" + SCALE, None, "large.weight has no scale for each of its rows"),
        ("large.weight" + SCALE, torch.ones(95), "large.weight has no scale for each of its rows"),
        ("large.weight" + SCALE, torch.ones(96, 1), "large.weight has no scale for each of its rows"),
        ("large.weight", None, "large.weight:scale8 belongs to no weight"),
        ("large.weight" + SCALE4, torch.ones(96, 1), "large.weight has no scale for each of its groups"),
        ("large.weight" + SCALE4, torch.ones(96, 2, dtype=torch.int64), "large.weight has no scale for each of its"),
        ("large.weight" + SCALE4, torch.ones(96), "large.weight has no scale for each of its groups"),
        ("large.weight", torch.ones(96, dtype=torch.uint8), "large.weight has no scale for each of its groups"),
        ("large.weight", torch.ones(96, 33, dtype=torch.uint8), "large.weight has no scale for each of its groups"),
        ("large.weight", None, "large.weight:scale4 belongs to no weight"),
    ],
)
def test_a_weight_without_its_scale_is_not_taken_for_numbers(
    tmp_path: Path, name: str, value: Tensor | None, message: str
) -> None:
    four = "scale4" in name + message or "groups" in message
    folder = save(tmp_path / "run", mixed(), "int4" if four else "int8")
    tensors = {k: v for k, v in load_file(folder / "model.safetensors").items() if k != name}
    replace_tensors(folder, tensors if value is None else tensors | {name: value})
    with pytest.raises(UserError, match=rf"model\.safetensors is damaged \({message}"):
        read(folder)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_scales_that_are_no_numbers_are_refused(tmp_path: Path, value: float) -> None:
    folder = save(tmp_path / "run", mixed(), "int4")
    tensors = load_file(folder / "model.safetensors")
    tensors["large.weight" + SCALE4][3, 1] = value
    replace_tensors(folder, tensors)
    with pytest.raises(UserError, match=r"holds numbers that are not finite \(large\.weight\)"):
        read(folder)


@pytest.mark.parametrize("kind", ["bfloat16", "int8", "int4"])
@pytest.mark.parametrize(
    "weights",
    [
        {"w": torch.ones(64, 64), "w" + SCALE: torch.ones(64)},
        {"w": torch.ones(64, 64), "w" + SCALE4: torch.ones(64)},
        {"w": torch.ones(2, dtype=torch.int8)},
        {"w": torch.ones(2, dtype=torch.uint8)},
    ],
)
def test_names_and_types_that_packing_needs_are_refused(kind: str, weights: dict[str, Tensor]) -> None:
    with pytest.raises(UserError, match="looks like a packed weight already"):
        pack(weights, kind)
    assert pack(weights, "float32") == weights


def test_whoever_may_read_the_recipe_may_read_the_weights(tmp_path: Path) -> None:
    write(tmp_path / "m", Identity(recipe="a: 1", vocab=VOCAB), {"w": randn(2, 2)})
    assert (tmp_path / "m" / "model.safetensors").stat().st_mode == (tmp_path / "m" / "recipe.yaml").stat().st_mode
