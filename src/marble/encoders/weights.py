"""Where an encoder's weights file is: given by path, already in the Hugging Face cache, or downloaded when asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from marble import files
from marble.encoders.catalogue import EncoderRow
from marble.errors import InputError, IntegrityError, MarbleError, UnavailableError

HUB_FILE = "model.safetensors"
_PICKLED = (".bin", ".pt", ".pth", ".ckpt", ".pkl")


def find_weights(row: EncoderRow, given: Path | None, *, allow_download: bool) -> Path:
    """The safetensors file of a hub encoder; an error that says what to do where there is none."""
    if given is not None:
        return check_given(given)
    cached = _in_cache(row)
    if cached is not None:
        return cached
    if not allow_download:
        raise UnavailableError(f"the weights of encoder '{row.name}' are not here", hint=how_to_get(row))
    return _download(row)


def check_given(given: Path) -> Path:
    """A path of the user's: a safetensors file, or a folder that holds `model.safetensors`."""
    path = given / HUB_FILE if given.is_dir() else given
    if path.suffix in _PICKLED and path.exists():
        raise InputError(
            f"'{path.suffix}' files can run code when they are opened, so they are not read",
            where=path,
            hint='Convert it once, where you trust it: python -c "import torch, safetensors.torch as s; '
            f"s.save_file({{k: v.contiguous() for k, v in torch.load('{path.name}', weights_only=True).items()}}, "
            f"'{path.stem}.safetensors')\"; then give the .safetensors file",
        )
    if not path.is_file():
        raise InputError("no such weights file", where=path)
    if path.suffix != ".safetensors":
        raise InputError("weights must be a .safetensors file", where=path)
    return path


def check_hash(path: Path, expected: str | None) -> str:
    """The file's SHA-256; refused if it is not the pinned one."""
    found = files.sha256_file(path)
    if expected is not None and found != expected:
        raise IntegrityError(
            f"weights are not the pinned ones: sha256 {found}, expected {expected}",
            where=path,
            hint="Get the file again, or change `weights_sha256` in the settings to the weights you mean",
        )
    return found


def how_to_get(row: EncoderRow) -> str:
    """The next step for whoever has no weights yet."""
    ask = f"Ask for access at {row.source}, run `hf auth login`, then" if row.gated else "Either"
    return (
        f"{ask} repeat with `--allow-download`, or fetch {row.source} yourself "
        f"and give the file with `--weights {row.name}=FILE`. `lite0` needs neither"
    )


def _in_cache(row: EncoderRow) -> Path | None:
    try:
        from huggingface_hub import try_to_load_from_cache
    except ImportError:
        return None
    found = try_to_load_from_cache(row.hub_repo, HUB_FILE, revision=row.revision)
    return Path(found) if isinstance(found, str) else None


def _download(row: EncoderRow) -> Path:
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise UnavailableError(
            "downloading weights needs huggingface_hub", hint="Run `pip install 'marble-wsi[encoders]'`"
        ) from None
    names = [HUB_FILE, "config.json"] if row.family == "hub" else [HUB_FILE]
    try:
        paths = [Path(hf_hub_download(row.hub_repo, name, revision=row.revision)) for name in names]
    except Exception as error:  # the hub's client raises many kinds; each becomes one sentence with a next step
        raise _explain(row, error) from None
    return paths[0]


def _explain(row: EncoderRow, error: Any) -> MarbleError:
    kind = type(error).__name__
    if kind in ("GatedRepoError", "RepositoryNotFoundError"):
        return UnavailableError(f"access to the weights of '{row.name}' was refused", hint=how_to_get(row))
    if kind in ("EntryNotFoundError", "RemoteEntryNotFoundError"):
        return UnavailableError(
            f"{row.source} holds no {HUB_FILE}",
            hint=f"Download its .bin file, convert it to safetensors and give it with `--weights {row.name}=FILE`; "
            "giving the .bin file prints the command that converts it",
        )
    return UnavailableError(
        f"could not download the weights of '{row.name}' ({kind}: {str(error).splitlines()[0] if str(error) else ''})",
        hint=f"Check the connection, or give a local file with `--weights {row.name}=FILE`",
    )
