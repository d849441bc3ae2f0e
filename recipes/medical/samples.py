"""Transcripts as training examples in the Hermes form, with other names and results each time.

A name of a transcript becomes another everywhere in it, and so do the numbers that its last query found: what is
left to learn is to copy them, and a policy that copies can do so with names it never saw.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

from harness_policy_server.hermes import CLOSE, OPEN, for_template
from recipes.finetune.play import Transcript, dealt
from recipes.medical.generate import bundled
from recipes.medical.world import DISEASES, DRUGS, MAKERS, SYLLABLES
from recipes.pocket_sql.tokenizer import END, START

_TOOLS = """\


# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
%s
</tools>

For each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:
<tool_call>
{"name": <function-name>, "arguments": <args-json-object>}
</tool_call>"""
_HEAD, _FOOT = _TOOLS.split("%s")

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['content'] is string %}{% set text = message['content'] %}"
    "{% elif message['content'] %}{% set text = message['content'] | map(attribute='text') | join %}"
    "{% else %}{% set text = '' %}{% endif %}"
    "{% if message['role'] == 'tool' %}"
    "{{ '<|im_start|>user\\n<tool_response>\\n' + text + '\\n</tool_response><|im_end|>\\n' }}"
    "{% else %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + text }}"
    "{% if loop.first and tools %}"
    + "{{ "
    + json.dumps(_HEAD)
    + " }}"
    + "{% for tool in tools %}{% if not loop.first %}{{ '\\n' }}{% endif %}"
    '{{ \'{"type": "function", "function": {"name": \' + tool.function.name | tojson'
    " + ', \"description\": ' + tool.function.description | tojson"
    " + ', \"parameters\": ' + tool.function.parameters | tojson + '}}' }}"
    "{% endfor %}" + "{{ " + json.dumps(_FOOT) + " }}" + "{% endif %}"
    "{% for call in message.tool_calls or [] %}"
    "{% if not loop.first or (text and text[-1] != '\\n') %}{{ '\\n' }}{% endif %}"
    "{{ '<tool_call>\\n{\"name\": ' + call.function.name | tojson"
    " + ', \"arguments\": ' + call.function.arguments | tojson + '}\\n</tool_call>' }}"
    "{% endfor %}"
    "{{ '<|im_end|>\\n' }}"
    "{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""As Qwen2.5's; a definition is printed by its fields, so that what a server adds to it does not show."""


def said(message: Mapping[str, Any]) -> str:
    """A reply as the policy writes it."""
    text = message.get("content") or ""
    for number, call in enumerate(message.get("tool_calls") or ()):
        gap = "\n" if number or (text and text[-1] != "\n") else ""
        function = {name: call["function"][name] for name in ("name", "arguments")}
        text += f"{gap}{OPEN}\n{json.dumps(function, ensure_ascii=False)}\n{CLOSE}"
    return text


def system_text(system: str, tools: Sequence[Mapping[str, Any]]) -> str:
    """The system message with the tools below it."""
    return system + _HEAD + "\n".join(map(tool_text, tools)) + _FOOT


def tool_text(tool: Mapping[str, Any]) -> str:
    """A definition as the template prints it: what else a framework puts there does not show."""
    function = {name: tool["function"][name] for name in ("name", "description", "parameters")}
    return json.dumps({"type": "function", "function": function}, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Dialogue:
    """A transcript as one row: every reply of it is learnt, each with all before it as its prompt."""

    tools: Sequence[Mapping[str, Any]]
    messages: list[dict[str, Any]]

    @classmethod
    def of(cls, transcript: Transcript) -> Dialogue:
        """The conversation of its last call."""
        return cls(transcript.calls[-1].tools, transcript.messages)

    def pieces(self) -> list[tuple[str, bool]]:
        system, *rest = for_template(self.messages)
        head = system_text(system["content"], self.tools) if self.tools else system["content"]
        found = [(f"{START}system\n{head}{END}\n", False)]
        told = ""
        for message in rest:
            if message["role"] == "assistant":
                found += [(f"{told}{START}assistant\n", False), (f"{said(message)}{END}", True)]
                told = "\n"
            else:
                text = str(message["content"])
                shown = (
                    f"<tool_response>\n{text}\n</tool_response>"
                    if message["role"] == "tool"
                    else text
                )
                told += f"{START}user\n{shown}{END}\n"
        return found


_ENDINGS = {ending: endings for endings in (DISEASES, DRUGS, MAKERS) for ending in endings}
_NAME = re.compile(f"([{SYLLABLES}]{{2,3}})({'|'.join(_ENDINGS)})")
_NUMBER = re.compile(r"(?<![\d.])\d+(?:\.\d+)?(?![\d.])")


@cache
def _kept_unseen() -> frozenset[str]:
    return frozenset(bundled()[0].parts["val"].names)


def varied(dialogue: Dialogue, rng: Random) -> Dialogue:
    """The conversation with other names and other numbers found."""
    names: dict[str, str] = {}

    def renamed(found: re.Match[str]) -> str:
        old = found[0]
        while old not in names:
            new = "".join(rng.sample(SYLLABLES, len(found[1]))) + rng.choice(_ENDINGS[found[2]])
            if new not in _kept_unseen() and new not in names.values():
                names[old] = new
        return names[old]

    messages = json.loads(_NAME.sub(renamed, json.dumps(dialogue.messages, ensure_ascii=False)))
    *_, result, answer = messages
    if result["role"] == "tool":
        header, *rows = result["content"].split("\n")
        numbers: dict[str, str] = {}
        for old in _NUMBER.findall("\n".join(rows)):
            numbers.setdefault(old, _other(old, rng))
        result["content"] = "\n".join(
            [header, *(_NUMBER.sub(lambda m: numbers[m[0]], row) for row in rows)]
        )
        answer["content"] = _NUMBER.sub(lambda m: numbers.get(m[0], m[0]), answer["content"])
    return Dialogue(dialogue.tools, messages)


def _other(number: str, rng: Random) -> str:
    """A number of as many digits."""
    digits = "".join(digit if digit == "." else str(rng.randint(0, 9)) for digit in number[1:])
    return str(rng.randint(1, 9)) + digits


@dataclass(frozen=True, slots=True)
class MedicalExamples:
    """The dialogues of one seed, as a source of training data.

    Attributes:
        file: A pickled list of `Dialogue`.
    """

    seed: int
    file: str

    def __call__(self, index: int) -> Iterator[Dialogue]:
        rng = Random(f"medical-tools/{self.seed}/{index}")
        for dialogue in dealt(self.file, self.seed, index):
            yield varied(dialogue, rng)
