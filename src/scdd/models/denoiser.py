"""The protocol that every network here meets; it lives in `core`, where objectives and samplers may see it."""

from scdd.core.denoiser import Denoiser

__all__ = ["Denoiser"]
