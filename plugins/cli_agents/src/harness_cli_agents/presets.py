"""Command-line agents of others, set up to use nothing but the gateway and the environment's tools."""

from __future__ import annotations
