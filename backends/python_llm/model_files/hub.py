"""Brings files of the Hugging Face hub to this machine, through its cache (HF_HOME, HF_HUB_OFFLINE are honoured).

Does not know what a model is; every failure becomes a ModelLoadError in plain words.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from python_llm.errors import ModelLoadError

_MODEL_FILES = ["*.json", "*.safetensors", "*.jinja", "*.model", "*.txt", "tokenizer*"]
_SPLIT_FILE = re.compile(r"-00001-of-(\d{5})\.gguf$")


def download_folder(repo_id: str, revision: str | None) -> Path:
    """The folder with config, safetensors weights and tokenizer of a hub repository; its subfolders are left out."""
    from huggingface_hub import snapshot_download

    def download() -> str:
        # Subfolders hold the same weights in other formats.
        return str(snapshot_download(repo_id, revision=revision, allow_patterns=_MODEL_FILES, ignore_patterns=["*/*"]))

    folder = Path(_explained(download, f"model {repo_id!r}", repo_id, revision))
    for wanted in ("config.json", "*.safetensors"):
        if not any(folder.glob(wanted)):
            raise ModelLoadError(
                f"The hub repository {repo_id!r} (copy in {folder}) has no {wanted}. If it holds GGUF files, name one: "
                f"'{repo_id}/FILE.gguf'."
            )
    return folder


def download_file(repo_id: str, filename: str, revision: str | None) -> Path:
    """One file of a hub repository; of a split GGUF model the first part, with the others beside it."""
    from huggingface_hub import hf_hub_download

    names = [filename]
    if match := _SPLIT_FILE.search(filename):
        stem, count = filename[: match.start()], int(match[1])
        names = [f"{stem}-{number:05d}-of-{count:05d}.gguf" for number in range(1, count + 1)]
    paths = []
    for name in names:

        def download(name: str = name) -> str:
            return str(hf_hub_download(repo_id, name, revision=revision))

        paths.append(Path(_explained(download, f"file {name!r} of {repo_id!r}", repo_id, revision)))
    return paths[0]


def _explained(download: Callable[[], str], what: str, repo_id: str, revision: str | None) -> str:
    from huggingface_hub import constants, errors

    where = f"the Hugging Face hub (cache: {constants.HF_HUB_CACHE})"
    try:
        return download()
    except errors.GatedRepoError:
        reason = f"{repo_id!r} is gated: accept its terms on its page, then set HF_TOKEN to your access token"
    except errors.RevisionNotFoundError:
        reason = f"{repo_id!r} has no revision {revision!r}"
    except errors.RepositoryNotFoundError:
        reason = "no such repository, or it is private: check the name, or set HF_TOKEN to an access token"
    except errors.LocalEntryNotFoundError:
        if constants.HF_HUB_OFFLINE:
            reason = "HF_HUB_OFFLINE is set and the cache does not hold it"
        else:
            reason = "the hub cannot be reached and the cache does not hold it: check the network, or name a local path"
    except errors.EntryNotFoundError:
        reason = "the repository has no such file"
    except errors.HFValidationError as error:
        reason = f"the name is not a hub id ({error})"
    except Exception as error:  # whichever HTTP library the hub's client uses raises its own kinds
        reason = f"{type(error).__name__}: {error}"
    raise ModelLoadError(f"Cannot get {what} from {where}: {reason}.")
