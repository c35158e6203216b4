"""Models of the Hugging Face Hub: ours, and those of others that can be read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from scdd.bundle.convert import DECODERS
from scdd.bundle.folder import CARD, FILES, META, TOKENIZER, WEIGHTS
from scdd.bundle.huggingface import CONFIG, MODEL_TYPE
from scdd.core.errors import UserError
from scdd.core.files import read_json
from scdd.core.hub import cached_only, why

# Of a repository that is no bundle: its config.json decides whether the weights are fetched.
FOREIGN_TEXTS = (
    *(CONFIG, "config.yaml", "generation_config.json"),
    *(TOKENIZER, "tokenizer_config.json", "chat_template.jinja"),
)
FOREIGN_WEIGHTS = (WEIGHTS, "model-*.safetensors", f"{WEIGHTS}.index.json")


def download(source: str) -> Path:
    """A snapshot of a Hub repository, of which only the files of a bundle, or of a model that can be read, are taken.

    "owner/name/file.gguf" is one file of it; "@revision" may follow.
    Its small files come first: they say whether the large ones are worth fetching.
    """
    match = re.fullmatch(r"([\w.-]+/[\w.-]+)(?:/([\w./-]+\.gguf))?(?:@([\w./-]+))?", source)
    if match is None:
        raise UserError(f'There is no checkpoint folder "{source}": check the path, or give a Hub id (owner/name).')
    import huggingface_hub

    name, file, revision = match.groups()
    cached = cached_only()
    how: dict[str, Any] = {"revision": revision, "local_files_only": cached}

    def fetch(*patterns: str) -> Path:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=list(patterns), **how))

    try:
        if file is not None:
            return Path(huggingface_hub.hf_hub_download(name, file, **how))
        folder = fetch(META, CARD, *FOREIGN_TEXTS)
        if (folder / META).is_file():
            return fetch(*FILES, CARD)
        if not (folder / CONFIG).is_file() or _readable(folder):
            folder = fetch(*FOREIGN_TEXTS, *FOREIGN_WEIGHTS)
            if not any(folder.glob("*.safetensors")):  # pickles are read as well, if there is nothing better
                folder = fetch(*FOREIGN_TEXTS, "pytorch_model*.bin", "pytorch_model.bin.index.json", "model.pt")
        return folder
    except UserError:
        raise
    # Network, authorisation, an unknown name: whatever the cause, the cure is the same.
    except Exception as error:
        raise UserError(
            f'"{source}" is no checkpoint folder here, and the Hugging Face Hub did not give it ({why(error, cached)}): '
            "check the name and the connection."
        ) from error


def _readable(folder: Path) -> bool:
    """Whether a config.json is of a model that can be read: of the Llama family, ours as transformers saves it, MDLM's, GIDD's."""
    config = read_json(folder / CONFIG)
    return config.get("model_type") in (*DECODERS, MODEL_TYPE, "mdlm") or "p_uniform" in config
