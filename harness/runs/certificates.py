"""Stored certificates of parity: where they are, and how they are read."""

from __future__ import annotations

import json
from pathlib import Path

from harness.config import cache_dir
from harness.runs.record_types import fault
from harness.runs.schema import Certificate
from harness.util.formatting import agent_label
from harness.util.parsing import digest


def certificate_of(agent_name: str, fingerprint_digest: str) -> Certificate | None:
    """Return the certificate of an agent with this fingerprint, whenever it was made, or None."""
    try:
        found: Certificate = json.loads(
            certificate_path(agent_name, fingerprint_digest).read_text(encoding="utf-8")
        )
    except (OSError, ValueError):
        return None
    whole = isinstance(found, dict) and fault(found, Certificate) is None
    return found if whole and digest(found["fingerprint"]) == fingerprint_digest else None


def certificate_path(agent_name: str, fingerprint_digest: str) -> Path:
    """Return where the certificate of an agent with this fingerprint is, or would be."""
    return cache_dir() / "parity" / f"{agent_label(agent_name)}-{fingerprint_digest}.json"
