"""Networks: hidden states in, a vocabulary head beside them."""

from scdd.models.attention import Cache
from scdd.models.denoiser import Denoiser
from scdd.models.dit import SIZES, DiT, DiTConfig
from scdd.models.ema import EMA
from scdd.models.heads import LMHead, QualityHead, dense_logits

__all__ = ["EMA", "SIZES", "Cache", "Denoiser", "DiT", "DiTConfig", "LMHead", "QualityHead", "dense_logits"]
