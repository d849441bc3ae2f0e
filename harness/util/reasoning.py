"""Recognition of a model's reasoning in the text of its replies."""

from __future__ import annotations

import re

_REASONING_TAG = r"(?:think|thinking|thought|reasoning)"
_REASONING_BEGINS = rf"(?:<{_REASONING_TAG}>|\[THINK\])"
_REASONING_ENDS = rf"(?:</{_REASONING_TAG}>|\[/THINK\])"
_REASONING = re.compile(rf"{_REASONING_BEGINS}.*?{_REASONING_ENDS}", re.DOTALL | re.IGNORECASE)
_REASONING_BEFORE = re.compile(rf"\A.*{_REASONING_ENDS}", re.DOTALL | re.IGNORECASE)
_REASONING_AFTER = re.compile(rf"{_REASONING_BEGINS}.*\Z", re.DOTALL | re.IGNORECASE)


def without_reasoning(reply: str) -> str:
    """Return a reply without its reasoning in `<think>` tags, one of which may be missing.

    Templates of some models open the reasoning in the prompt, so that the reply has only the
    closing tag. A truncated reply has only the opening tag.
    """
    reply = _REASONING.sub("", reply)
    reply = _REASONING_BEFORE.sub("", reply)
    return _REASONING_AFTER.sub("", reply)
