"""Set up CrewAI as a library inside a runner. Import this before anything else of `crewai`.

CrewAI reads its telemetry setting only from the environment, which a plugin must not change. This
module disables telemetry before `import crewai` builds the exporter, its thread and its signal
handlers.
"""

from __future__ import annotations

import os
import warnings

from crewai_core.telemetry import Telemetry

Telemetry._is_telemetry_disabled = classmethod(lambda cls: True)  # type: ignore[method-assign, assignment]

_before = os.environ.get("TOKENIZERS_PARALLELISM")
with warnings.catch_warnings():
    warnings.simplefilter(
        "ignore", ImportWarning
    )  # of CrewAI's own packages, also where warnings are errors
    import crewai.llms.retry  # (sets that variable while it is imported)

if _before is None:
    os.environ.pop("TOKENIZERS_PARALLELISM", None)

# `max_retries=0` silences the OpenAI client only; CrewAI repeats a 429, but retries are the host's.
crewai.llms.retry._LLM_RATE_LIMIT_MAX_ATTEMPTS = 1  # type: ignore[misc]
