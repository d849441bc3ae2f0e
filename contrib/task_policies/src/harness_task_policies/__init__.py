"""Small policies for single task sets; `catalogue.yaml` lists them."""

from __future__ import annotations

from harness.contracts.hookspecs import PolicyCatalogueSpec, hookimpl

HARNESS_API = 1


@hookimpl
def harness_policies() -> list[PolicyCatalogueSpec]:
    return [
        PolicyCatalogueSpec(
            "task_policies",
            "harness_task_policies:catalogue.yaml",
            "pocket_probe, pocket_split and medical",
        ),
    ]
