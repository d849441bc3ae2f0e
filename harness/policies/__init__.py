"""Policies: named ones, local folders and Hugging Face ids."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from harness.config import Config
from harness.config.sections import PolicyConfig
from harness.errors import ConfigError, EnvironmentProblem, UserError, nearest
from harness.plugins import offers_tools
from harness.policies.catalogue import MANIFEST, by_name, find
from harness.policies.weights import KINDS, damage
from harness.runs.folder import read_json
from harness.util.parsing import at, nested
from harness.util.tool_calls import QWEN_CODER


def resolve(name_or_path: str) -> str:
    """Return the folder or Hugging Face id from which to load a policy.

    Args:
        name_or_path: A name of `catalogue.by_name`, a local folder, or a Hugging Face id.

    Returns:
        A folder's path for the first two; a Hugging Face id as it is.

    Raises:
        ConfigError: The policy of that name is not on this machine yet, or a folder is not there or
            holds no policy.
    """
    if named := find(name_or_path):
        if not named.there:
            raise ConfigError(f"policy {named.name!r} is not in {named.folder}: {named.how}")
        return str(named.folder)
    path = Path(name_or_path).expanduser()
    if path.exists():
        if not (path / "config.json").is_file():
            raise ConfigError(
                f"policy.path: {path} has no config.json, as the folder of a policy has"
            )
        return str(path)
    if path.is_absolute() or name_or_path.startswith(".") or name_or_path.count("/") > 1:
        raise ConfigError(f"policy.path: there is no folder {path} (from {Path.cwd()}). Correct it")
    return name_or_path


def fetched(policy: PolicyConfig) -> str:
    """Return the folder of a policy, after downloading it from Hugging Face if necessary.

    One process always gets the same revision. If huggingface.co does not answer, an earlier
    download is used.

    Raises:
        ConfigError: As `resolve`; there is no such policy or revision, its terms were not accepted,
            or a file of its weights is damaged.
        EnvironmentProblem: It is not on this machine, and huggingface.co does not answer.
    """
    path = resolve(policy.path)
    if not Path(path).exists():
        return _whole(_downloaded(path, policy.revision))
    if policy.revision is not None:
        raise ConfigError(
            f"policy.revision: {policy.path} is no id on Hugging Face, "
            f"and has no {policy.revision!r}"
        )
    return _whole(path)


def _whole(folder: str) -> str:
    for file in sorted(Path(folder).glob("*")):
        if file.suffix in KINDS and (wrong := damage(file)):
            raise ConfigError(f"policy.path: {file} is damaged: {wrong}. Copy or download it again")
    return folder


@lru_cache
def _downloaded(name: str, revision: str | None) -> str:
    try:
        import httpx
        from huggingface_hub import errors, snapshot_download
    except ImportError:
        return name  # later code states what to install

    get = partial(snapshot_download, name, revision=revision, ignore_patterns=_TWICE)
    try:
        folder = get(allow_patterns=_LOADED)
        return (
            folder
            if any(Path(folder).glob("*.safetensors"))
            else get(allow_patterns=[*_LOADED, "*.bin"])
        )
    except errors.RevisionNotFoundError as error:
        raise ConfigError(
            f"policy.revision: {name} has no branch, tag or commit {revision!r}"
        ) from error
    except errors.GatedRepoError as error:
        raise ConfigError(
            f"policy.path: {name} is gated. Accept its terms on https://huggingface.co/{name}, "
            "then set HF_TOKEN"
        ) from error
    except (errors.RepositoryNotFoundError, errors.HFValidationError) as error:
        raise ConfigError(
            f"policy.path: {name!r} is neither a folder nor one of {', '.join(by_name())}, "
            "and huggingface.co has none "
            f"of that name that HF_TOKEN may see{nearest(name, by_name())}"
        ) from error
    except (
        errors.LocalEntryNotFoundError,
        errors.HfHubHTTPError,
        httpx.HTTPError,
        ConnectionError,
    ) as error:
        # Downloads by other programs have no list of files.
        with suppress(errors.LocalEntryNotFoundError):
            return get(local_files_only=True)
        cause = str(error.__cause__ or error).partition("\n")[0]
        raise EnvironmentProblem(
            f"policy.path: {name} is not in this machine's cache"
            f"{f' at {revision}' if revision else ''}, and "
            f"huggingface.co does not answer ({cause}). "
            "Download it where there is a network, and name its folder"
            f"{nearest(name, by_name()) or '. Known by name: ' + ', '.join(by_name())}"
        ) from error


def on_disk(policy: PolicyConfig) -> str:
    """Return the folder of a policy without a download; empty if it is not on this machine."""
    from huggingface_hub import errors, snapshot_download

    try:
        found = resolve(policy.path)
    except ConfigError:
        return ""
    if Path(found).is_dir():
        return found
    with suppress(errors.LocalEntryNotFoundError, errors.HFValidationError):
        return snapshot_download(found, revision=policy.revision, local_files_only=True)
    return ""


_LOADED = ["*.json", "*.jinja", "*.py", "*.txt", "*.model", "*.tiktoken", "*.safetensors"]
_TWICE = ["*/*", "consolidated*"]
"""Files of a repository that loading a policy may read, and those that only hold the same weights
once more.
"""


def revision_of(folder: Path) -> str:
    """Return `ID@COMMIT` of a policy in Hugging Face's cache; empty for any other folder."""
    kind, _, name = folder.parent.parent.name.partition("--")
    cached = kind == "models" and folder.parent.name == "snapshots"
    return f"{name.replace('--', '/')}@{folder.name}" if cached else ""


def tool_parser(model: str) -> str:
    """Return the name of the format in which a policy writes tool calls.

    It is `qwen2_5_coder` for Qwen2.5-Coder, which writes another format than its template states
    (`harness.util.tool_calls`); otherwise that of the chat template, in vLLM's names: `llama3_json`, or
    `hermes` of Qwen and others.

    Args:
        model: A local folder or a Hugging Face id.
    """
    if any(_QWEN_CODER.search(name) for name in _names_of(model)):
        return QWEN_CODER
    files = [Path(model) / name for name in ("chat_template.jinja", "tokenizer_config.json")]
    template = "".join(file.read_text(encoding="utf-8") for file in files if file.is_file())
    llama = "<|python_tag|>" in template if template else "llama" in model.lower()
    return "llama3_json" if llama and "<tool_call>" not in template else "hermes"


_QWEN_CODER = re.compile(r"qwen[-_.]?2[._]5[-_.]?coder", re.IGNORECASE)


def _names_of(model: str) -> Iterator[str]:
    """Yield a policy's names: its id, or those of its folder, its manifest and its run."""
    folder = Path(model)
    if not folder.is_dir():
        yield model
        return
    yield folder.name
    yield revision_of(folder)
    manifest = _json_in(folder / MANIFEST)
    yield str(manifest.get("policy"))
    source = manifest.get("source")
    if isinstance(source, Mapping):
        yield from (str(source.get(key)) for key in ("model", "file"))
    yield str(_json_in(folder / "config.json").get("_name_or_path"))
    for parent in folder.absolute().parents:
        if (parent / "run.json").is_file():  # for a checkpoint, the initial policy of its training
            config = _json_in(parent / "run.json").get("config")
            first = config.get("policy") if isinstance(config, Mapping) else None
            path = str(first.get("path")) if isinstance(first, Mapping) else ""
            if path and Path(path).absolute() != folder.absolute():
                yield from _names_of(path)
            return


def _json_in(file: Path) -> Mapping[str, Any]:
    """Return a file's JSON object; empty if there is none or it cannot be read."""
    with suppress(UserError, OSError):
        data = read_json(file, "") if file.is_file() else {}
        return data if isinstance(data, Mapping) else {}
    return {}


def parser_of(config: Config, folder: str, device: str) -> str:
    """Return the name of the parser that reads a policy's tool calls in a run.

    Empty if its agent offers no tools.

    The configuration may name one of vLLM's; harness's own server, on a CPU, reads two forms.

    Args:
        folder: A local folder or a Hugging Face id.
    """
    if not offers_tools(config.agent):
        return ""
    own = tool_parser(folder)
    if device == "cpu":
        return own if own == QWEN_CODER else "hermes"
    named = at(nested(config.verl), "actor_rollout_ref.rollout.engine_kwargs.vllm.tool_call_parser")
    return str(named or own)


def detokenizer(folder: str) -> Callable[[Sequence[int]], str] | None:
    """Return a function that decodes a policy's token ids to text, including special tokens.

    None if its tokenizer is not available.
    """
    try:
        from tokenizers import Tokenizer
    except ImportError:
        return None
    file = Path(folder) / "tokenizer.json"
    if not file.is_file():
        return None
    tokenizer: Any = Tokenizer.from_file(str(file))
    return lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=False))


def about(model: str) -> Mapping[str, Any]:
    """Return the `config.json` of a local folder or a Hugging Face id; empty if there is none."""
    with suppress(Exception):
        file = Path(model) / "config.json"
        if not file.is_file():
            from huggingface_hub import hf_hub_download, try_to_load_from_cache

            cached = try_to_load_from_cache(model, "config.json")
            file = Path(
                cached if isinstance(cached, str) else hf_hub_download(model, "config.json")
            )
        return read_json(file, "")
    return {}


def longest(folder: str) -> int | None:
    """Return a policy's limit of prompt and reply together, in tokens; None if unknown."""
    settings = about(folder)
    most = settings.get("text_config", settings).get("max_position_embeddings")
    return None if most is None else int(most)
