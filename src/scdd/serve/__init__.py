"""The model over HTTP: a REST and an OpenAI-compatible API, streams of denoising frames, and the playground."""

from scdd.serve.app import create_app
from scdd.serve.limits import Limits

__all__ = ["Limits", "create_app"]
