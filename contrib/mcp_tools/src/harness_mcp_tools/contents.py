"""Convert a tool's result to the text that a model is shown."""

from __future__ import annotations

import json

from mcp.types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)


def text_of(result: CallToolResult) -> str:
    """Return texts unchanged, in order, and one descriptive line for each other content."""
    parts = [_text(part) for part in result.content]
    if not parts and result.structuredContent is not None:
        parts = [json.dumps(result.structuredContent, ensure_ascii=False)]
    return "\n".join(parts) or "(nothing)"


def _text(part: ContentBlock) -> str:
    if isinstance(part, TextContent):
        return part.text
    if isinstance(part, ImageContent):
        return f"[image, {part.mimeType}, {_size(part.data)}]"
    if isinstance(part, AudioContent):
        return f"[audio, {part.mimeType}, {_size(part.data)}]"
    if isinstance(part, ResourceLink):
        return f"[resource {part.uri}: {part.name}]"
    assert isinstance(part, EmbeddedResource)
    if isinstance(part.resource, TextResourceContents):
        return part.resource.text
    assert isinstance(part.resource, BlobResourceContents)
    return (
        f"[resource {part.resource.uri}, "
        f"{part.resource.mimeType or 'no type'}, {_size(part.resource.blob)}]"
    )


def _size(base64: str) -> str:
    return f"{len(base64) * 3 // 4 - base64[-2:].count('='):,} bytes"
