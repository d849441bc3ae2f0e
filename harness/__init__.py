"""The public API for plugin authors and notebooks: `from harness import Task, hookimpl`.

Names are imported lazily. Each name is defined in a module below; harness's own modules import it
from there.
"""

from __future__ import annotations

TYPE_CHECKING = False  # importing `typing` takes longer than the rest of this module

if TYPE_CHECKING:
    from typing import Any

    from harness.api.evaluating import evaluate
    from harness.api.loaded import LoadedRun, load_run
    from harness.api.training import train
    from harness.compare import compare
    from harness.compare.compared import Compared
    from harness.config import Config, TrainConfig
    from harness.contracts.environments import (
        Environment,
        EnvironmentSession,
        Observation,
        Tool,
        check_offered,
    )
    from harness.contracts.hookspecs import (
        AdapterSpec,
        AgentSpec,
        CommandSpec,
        EnvironmentSpec,
        LauncherSpec,
        PolicyCatalogueSpec,
        PolicyServerSpec,
        PreparedDataSpec,
        ProgramSpec,
        ProtocolSpec,
        QueueSpec,
        RewardSpec,
        StoreSpec,
        TaskSetSpec,
        TrackerSpec,
        TrainerSpec,
        hookimpl,
    )
    from harness.contracts.programs import CANARY, Played, Program, Scenario, TaughtCall, Turn
    from harness.contracts.queue import Queue, QueueBackend
    from harness.contracts.rewards import RewardFunction
    from harness.contracts.tasks import TaskSet
    from harness.contracts.toolbox import LLM, Agent, Toolbox
    from harness.contracts.trainers import MEASURES, LiveRun, Standby, Trainer
    from harness.errors import (
        ConfigError,
        EndpointError,
        EnvironmentFault,
        EnvironmentProblem,
        HarnessError,
        NoSuchArm,
        NotComparable,
        PluginError,
        RewardError,
        RolloutError,
        RunFailed,
        TaskSetError,
        UserError,
    )
    from harness.gateway.server import GatewayServer
    from harness.mock_model.completion import Reply
    from harness.plugins import make_trainer
    from harness.policies import fetched
    from harness.records import (
        Attempt,
        CallFailure,
        Outcome,
        Problem,
        Task,
        ToolCall,
        Transition,
        Verdict,
    )
    from harness.rollout.request import Phase
    from harness.rollout.session import Session
    from harness.rollout.stack import RolloutWork
    from harness.runs.folder import RowLog, RunFolder
    from harness.runs.progress import Progress
    from harness.testing.contract import AgentContract
    from harness.testing.data_contract import RewardContract, TaskSetContract
    from harness.testing.environment_contract import EnvironmentContract
    from harness.testing.program_contract import ProgramContract
    from harness.testing.trainer_contract import TrainerContract
    from harness.training.launch import validation_due

__all__ = [
    "CANARY",
    "LLM",
    "MEASURES",
    "AdapterSpec",
    "Agent",
    "AgentContract",
    "AgentSpec",
    "Attempt",
    "CallFailure",
    "CommandSpec",
    "Compared",
    "Config",
    "ConfigError",
    "EndpointError",
    "Environment",
    "EnvironmentContract",
    "EnvironmentFault",
    "EnvironmentProblem",
    "EnvironmentSession",
    "EnvironmentSpec",
    "GatewayServer",
    "HarnessError",
    "LauncherSpec",
    "LiveRun",
    "LoadedRun",
    "NoSuchArm",
    "NotComparable",
    "Observation",
    "Outcome",
    "Phase",
    "Played",
    "PluginError",
    "PolicyCatalogueSpec",
    "PolicyServerSpec",
    "PreparedDataSpec",
    "Problem",
    "Program",
    "ProgramContract",
    "ProgramSpec",
    "Progress",
    "ProtocolSpec",
    "Queue",
    "QueueBackend",
    "QueueSpec",
    "Reply",
    "RewardContract",
    "RewardError",
    "RewardFunction",
    "RewardSpec",
    "RolloutError",
    "RolloutWork",
    "RowLog",
    "RunFailed",
    "RunFolder",
    "Scenario",
    "Session",
    "Standby",
    "StoreSpec",
    "Task",
    "TaskSet",
    "TaskSetContract",
    "TaskSetError",
    "TaskSetSpec",
    "TaughtCall",
    "Tool",
    "ToolCall",
    "Toolbox",
    "TrackerSpec",
    "TrainConfig",
    "Trainer",
    "TrainerContract",
    "TrainerSpec",
    "Transition",
    "Turn",
    "UserError",
    "Verdict",
    "check_offered",
    "compare",
    "evaluate",
    "fetched",
    "hookimpl",
    "load_run",
    "make_trainer",
    "train",
    "validation_due",
]

_HOMES = {
    "harness": "compare",
    "harness.compare.compared": "Compared",
    "harness.config": "Config TrainConfig",
    "harness.contracts.environments": "Environment EnvironmentSession Observation Tool "
    "check_offered",
    "harness.errors": "ConfigError EndpointError EnvironmentFault EnvironmentProblem HarnessError NoSuchArm "
    "NotComparable PluginError RewardError RolloutError RunFailed TaskSetError UserError",
    "harness.gateway.server": "GatewayServer",
    "harness.contracts.hookspecs": "AdapterSpec AgentSpec CommandSpec EnvironmentSpec "
    "LauncherSpec PolicyCatalogueSpec PolicyServerSpec PreparedDataSpec ProgramSpec ProtocolSpec "
    "QueueSpec RewardSpec StoreSpec TaskSetSpec TrackerSpec TrainerSpec hookimpl",
    "harness.plugins": "make_trainer",
    "harness.policies": "fetched",
    "harness.contracts.programs": "CANARY Played Program Scenario TaughtCall Turn",
    "harness.api.evaluating": "evaluate",
    "harness.api.loaded": "LoadedRun load_run",
    "harness.api.training": "train",
    "harness.records": "Attempt CallFailure Outcome Problem Task ToolCall Transition Verdict",
    "harness.runs.folder": "RowLog RunFolder",
    "harness.contracts.queue": "Queue QueueBackend",
    "harness.contracts.rewards": "RewardFunction",
    "harness.rollout.request": "Phase",
    "harness.rollout.session": "Session",
    "harness.rollout.stack": "RolloutWork",
    "harness.training.launch": "validation_due",
    "harness.mock_model.completion": "Reply",
    "harness.contracts.tasks": "TaskSet",
    "harness.testing.contract": "AgentContract",
    "harness.testing.data_contract": "RewardContract TaskSetContract",
    "harness.testing.environment_contract": "EnvironmentContract",
    "harness.testing.program_contract": "ProgramContract",
    "harness.testing.trainer_contract": "TrainerContract",
    "harness.contracts.toolbox": "LLM Agent Toolbox",
    "harness.contracts.trainers": "MEASURES LiveRun Standby Trainer",
    "harness.runs.progress": "Progress",
}
"""Map each module to the public names that it defines. The entry of `harness` lists public
modules.
"""

__version__ = "0.1.0"
DISTRIBUTION = "agent-rl-harness"


def face(module: str, homes: dict[str, str]) -> tuple[Any, Any]:
    """Return `__getattr__` and `__dir__` for a module that imports its public names lazily."""
    home = {name: place for place, names in homes.items() for name in names.split()}

    def get(name: str) -> Any:
        from importlib import import_module

        if name not in home:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        if home[name] == module:
            return import_module(f"{module}.{name}")
        return getattr(import_module(home[name]), name)

    return get, lambda: sorted(home)


if not TYPE_CHECKING:  # type checkers must still report a misspelt name
    __getattr__, __dir__ = face(__name__, _HOMES)
