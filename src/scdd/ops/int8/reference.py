"""The product of whole numbers in float64, where every one of them and every sum is exact."""

from __future__ import annotations

from torch import Tensor


def product(rows: Tensor, codes: Tensor) -> Tensor:
    """rows [M, K] of whole numbers times codes [N, K] transposed, rounded once, to float32."""
    return (rows.double() @ codes.double().T).float()
