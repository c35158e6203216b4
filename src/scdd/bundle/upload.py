"""Uploading a folder to the Hugging Face Hub."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from scdd.core.errors import UserError, reason

REPO = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


def check_upload(repo: str) -> None:
    """Refuse a name that is none, and a push without a token, before anything is computed."""
    if REPO.fullmatch(repo) is None or "--" in repo or ".." in repo:
        raise UserError(f'"{repo}" is no name of a Hub repository: give OWNER/NAME.')
    from huggingface_hub import get_token

    if get_token() is None:
        raise UserError(
            "The Hugging Face Hub takes no upload without a token: log in with `hf auth login`, or set HF_TOKEN."
        )


def upload(
    folder: Path, repo: str, *, private: bool = False, revision: str | None = None, message: str | None = None
) -> str:
    """Make the repository if there is none, put the folder's files there in one commit; gives the repository's address."""
    from huggingface_hub import HfApi

    api = HfApi()
    asked: dict[str, Any] = {"private": True} if private else {}  # else an organisation's own default decides
    try:
        made = api.create_repo(repo, exist_ok=True, **asked)
        if revision is not None:
            api.create_branch(repo, branch=revision, exist_ok=True)
        api.upload_folder(
            repo_id=repo, folder_path=folder, revision=revision, commit_message=message or "Model from scdd"
        )
    # Whatever the library raises, nothing is left for us to do but to say it; only the cure differs.
    except Exception as error:
        raise _refusal(repo, error) from error
    return str(made)


def _refusal(repo: str, error: Exception) -> UserError:
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status == 401:
        why, cure = "it does not know the token", "log in again with `hf auth login`, or set HF_TOKEN"
    elif status == 403:
        why, cure = "the token may not write there", "use a token with write access, or a name of your own"
    elif status is not None:
        why, cure = reason(error), "check the name and the revision"
    else:
        why, cure = reason(error), "check the connection"
    return UserError(f"The Hugging Face Hub did not take {repo} ({why.rstrip('.:')}): {cure}.")
