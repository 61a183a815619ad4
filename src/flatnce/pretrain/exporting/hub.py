"""Exported folders to a repository of the Hugging Face hub."""

import os
from pathlib import Path

from flatnce import __version__
from flatnce.extras import require_extra
from flatnce.pretrain.exporting.forms import ExportError, read_config

__all__ = ["check_repository", "push_to_hub"]


def check_repository(repository: str) -> None:
    """Refuse a name that no repository of the hub can have, before any work is done."""
    utils = require_extra("huggingface_hub.utils", "push_to_hub")
    try:
        utils.validate_repo_id(repository)
    except ValueError as error:
        raise ValueError(
            f"push_to_hub={repository!r} is not the name of a repository; pass USER/NAME, or NAME "
            f"for one of your own ({error})"
        ) from error


def push_to_hub(folder: str | Path, repository: str, *, private: bool = False) -> str:
    """Upload an exported folder to a repository of the Hugging Face hub; return its address.

    The repository is created if it does not exist. The token is that of ``hf auth login``, or of
    the environment variable ``HF_TOKEN``.

    Arguments:
        folder: What :func:`~flatnce.pretrain.exporting.export` wrote.
        repository: ``USER/NAME``, or ``NAME`` for one of your own.
        private: Create a private repository; one that exists stays as it is.
    """
    check_repository(repository)
    ours = read_config(folder)["flatnce"]
    hub = require_extra("huggingface_hub", "push_to_hub")
    api = hub.HfApi(os.environ.get("HF_ENDPOINT"), library_name="flatnce")
    try:
        made = api.create_repo(repository, private=private or None, exist_ok=True)
        said = f"Upload step {ours['step']} as {ours['form']} (flatnce {__version__})"
        api.upload_folder(repo_id=made.repo_id, folder_path=folder, commit_message=said)
    except Exception as error:  # of the hub, its client or the network, each with kinds of its own
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ExportError(
            f"{folder} is written but not on the hub ({reason}); log in with `hf auth login` if "
            f"that is the reason, then: hf upload {repository} {folder}"
        ) from error
    return str(made)
