"""One rollout from task to episode: enqueue, wait, score, record, and return the trainable part.

Runs where gold is known: in verl's agent-loop workers and in an evaluation. Agents run elsewhere
and never see it.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from harness.config import Config
from harness.config.sections import EvalConfig
from harness.contracts.programs import TaughtCall, Turn
from harness.contracts.queue import Queue
from harness.gateway.answers import SeenIds
from harness.gateway.client import GatewayControl
from harness.gateway.failures import Refusal
from harness.plugins import (
    environment,
    environment_of,
    make_task_set,
    program,
    program_of,
    roles_of,
    trained_by,
)
from harness.policies.demonstrations import demonstrations_in
from harness.records import Attempt, Demonstrations, Task, Transition, Verdict
from harness.rollout.assignment import Assignment
from harness.rollout.client import RolloutClient
from harness.rollout.controls import RewardShuffle, inverts
from harness.rollout.credit import kinds, payments
from harness.rollout.request import Phase, RolloutRequest, problem_of
from harness.rollout.scored import Scored, agreeing
from harness.rollout.scoring import Scorer
from harness.rollout.shadow_queue import ShadowQueue, chosen
from harness.runs.episodes import episode_row, transition_rows
from harness.runs.folder import RowLog, RunFolder
from harness.util.deadlines import DeadlinePassed, Raised, within
from harness.util.formatting import agent_label, members


@dataclass(frozen=True, slots=True)
class _Payment:
    """The rewards that training uses for one rollout.

    Attributes:
        used: The rollout's reward; None leaves it out of its group.
        by_index: Rewards of calls of trained roles, by the call's index.
    """

    used: float | None
    by_index: Mapping[int, float]


REMEMBERED = 20_000
"""Number of the last response ids; none of them may occur again. The gateway remembers more."""


class Session:
    """Run, score and record the rollouts that one process requests.

    Args:
        model: The policy's name at its servers.
        queue: The run's queue, or a connection to it.
        validation: Sampling of validation; by default greedy, one rollout per task.
        policy: The policy's folder: demonstrations in it are inserted into every rollout.
    """

    def __init__(
        self,
        config: Config,
        model: str,
        queue: Queue,
        control: GatewayControl,
        folder: RunFolder,
        validation: EvalConfig | None = None,
        policy: str = "",
    ) -> None:
        self.config = config
        self.model = model
        self._task_set = make_task_set(config)
        self._tasks: dict[Phase, dict[str, Task]] = {
            "train": {task.id: task for task in self._task_set.load(config.task.train_split)},
            "val": {task.id: task for task in self._task_set.load(config.task.val_split)},
        }
        self._program = program(program_of(config.agent))
        self._assignment = Assignment(
            members(config.agent), folder.path / "data", config.train.batch_size
        )
        self._scorer = Scorer(config, folder.reward, roles_of(config.agent))
        self._training_scorer = self._scorer
        if config.reward.training is not None:
            self._training_scorer = Scorer(
                config.with_training_reward(), folder.reward / "training", roles_of(config.agent)
            )
        self._environment = environment(environment_of(config.task.name))
        self._validation = validation or EvalConfig()
        self._demonstrations = demonstrations_in(policy)
        self._client = RolloutClient(queue)
        self._control = control
        self._episodes = RowLog(folder, "episodes")
        self._transitions = (
            RowLog(folder, "transitions") if self.config.rollout.keep_transitions else None
        )
        self._spool = ShadowQueue(folder.shadow)
        self._matches = re.compile(trained_by(self.config.agent, self.config.agent_match))
        self._responses = SeenIds(REMEMBERED)
        self._shuffles = defaultdict[str, RewardShuffle](lambda: RewardShuffle(self.config.seed))
        """By the kind of call that is paid; the empty text is the rollout itself."""

    async def connect(self, addresses: list[str]) -> None:
        """Tell the gateway the policy's servers, as `host:port`."""
        upstreams = [f"http://{address}/v1" for address in addresses]
        await self._control.set_upstreams(upstreams, model=self.model, token_ids=True)

    def tasks(self, phase: Phase) -> list[Task]:
        """All tasks of a phase."""
        return list(self._tasks[phase].values())

    def taught(self, task_id: str) -> TaughtCall | None:
        """Return the call that teaches a training task's gold answer.

        None if the task has no such answer, or the program has no reply that gives it.
        """
        task = self._tasks["train"][task_id]
        answer = self._environment.gold_answer(task)
        if answer is None:
            return None
        problem = problem_of(task, self._task_set.context(task), self.config)
        return self._program.taught(problem, answer)

    async def rollout(
        self,
        task_id: str,
        phase: Phase,
        step: int,
        session: int,
        demonstrations: Demonstrations | None = None,
    ) -> Scored:
        """Run one rollout and record its episode.

        In validation the policy's last transition represents the rollout, whatever `agent_match`
        selects. Without `demonstrations`, those of the policy's folder are inserted, if any.
        """
        task = self._tasks[phase][task_id]
        agent = self._assignment.agent(phase, step, task.id)
        attempt = await self._attempt(agent, task, phase, step, session, demonstrations)
        turns = self._program.turns(attempt)

        # The attempt's own answer is always scored. Drafts before it are scored where training pays
        # calls by their drafts; otherwise the first one suffices, for the record.
        pays_drafts = phase == "train" and self.config.train.credit != "shared"
        drafts = turns if pays_drafts else turns[:1]
        attempt, verdict, worth = await self._score(task, attempt, [turn.answer for turn in drafts])

        call_kinds = kinds(attempt.transitions, turns)
        payment = _Payment(verdict.value, {})
        if phase == "train":
            by = f"{task.id}/{session}"
            of_training = verdict
            if self._training_scorer is not self._scorer:
                attempt, of_training = await self._training_scorer.judge(task, attempt)
            payment = self._pay(attempt, of_training, turns, call_kinds, worth, step, by)
        elif self.config.reward.shuffle and step == 0 and verdict.value is not None:
            self._shuffles[""].note(step, verdict.value)

        trained = []
        paid = {}
        kind_of = {}
        rewrites = answering = 0
        for call, kind in zip(attempt.transitions, call_kinds, strict=True):
            # Calls that are too long have a reward, which their group needs, but are not trained.
            if call.index in payment.by_index and self._fits(call):
                trained.append(call)
                paid[call.index] = payment.by_index[call.index]
            kind_of[call.index] = kind
            rewrites += call.role in self._program.revisers
            answering += call.role not in self._program.checkers
        first = turns[0].answer if turns else None
        row = episode_row(
            task,
            attempt,
            verdict,
            reward_version=self._scorer.version,
            agent=agent_label(agent),
            phase=phase,
            step=step,
            session=session,
            paid=paid,
            first_answer=first,
            first_reward=worth.get(first) if first is not None else None,
            rewrites=rewrites,
            used_reward=payment.used if phase == "train" else None,
            meaning=await self._meaning(task, attempt) if phase == "val" else None,
        )
        self._episodes.add([row])
        if self._transitions is not None:
            self._transitions.add(transition_rows(attempt, phase=phase, step=step, paid=paid))

        returned = trained if phase == "train" else self._last(attempt.transitions)
        return Scored(
            reward=verdict.value,
            reason=verdict.reason,
            used=payment.used,
            calls=tuple(returned),
            kinds=tuple(kind_of[call.index] for call in returned),
            values={kind_of[index]: value for index, value in payment.by_index.items()},
            turns=answering,
            elapsed_s=attempt.elapsed_s,
            agrees=agreeing(returned, attempt, turns, worth),
        )

    async def _attempt(
        self,
        agent: str,
        task: Task,
        phase: Phase,
        step: int,
        session: int,
        demonstrations: Demonstrations | None,
    ) -> Attempt:
        """Have a runner make the attempt, and queue it for the shadow check if it was chosen."""
        context, temperature = self._task_set.context(task), self._validation.temperature
        request = RolloutRequest.build(
            task, context, self.config, phase, step, session, temperature, agent
        )
        shown = demonstrations
        if shown is None:
            shown = self._demonstrations.for_task(task.id)
        # Demonstrations belong to the policy; other models answer these roles.
        own = {role: pairs for role, pairs in shown.items() if role not in self.config.roles}
        request = replace(request, demonstrations=own)
        metadata = {"step": step, "task": task.id, "session": session}
        attempt = await self._client.run(request, metadata)
        self._check(attempt)
        share = self.config.rollout.shadow_share
        if chosen(self.config.seed, share, phase, step, f"{task.id}/{session}"):
            self._spool.add(request, attempt, self.model, phase, step)
        return attempt

    def _last(self, calls: Sequence[Transition]) -> list[Transition]:
        """Return the policy's last transition, if there is one."""
        for call in reversed(calls):
            # Another model, with another tokenizer, answers the other roles.
            if call.response_ids and call.role not in self.config.roles:
                return [call]
        return []

    async def _meaning(self, task: Task, attempt: Attempt) -> str | None:
        """Return a hash of the normalized answer if a task has several samples, which vote.

        None without a vote, or if the answer cannot be normalized.
        """
        answer = attempt.answer
        if self._validation.samples == 1 or attempt.outcome != "ok" or answer is None:
            return None
        try:
            meaning = await within(
                self.config.reward.timeout_s, lambda: self._environment.meaning(task, answer)
            )
        except (DeadlinePassed, Raised):
            return None
        if meaning is None:
            return None
        return hashlib.sha256(meaning.encode("utf-8", "surrogatepass")).hexdigest()[:16]

    def _pay(
        self,
        attempt: Attempt,
        verdict: Verdict,
        turns: Sequence[Turn],
        call_kinds: Sequence[str],
        worth: Mapping[str, float | None],
        step: int,
        by: str,
    ) -> _Payment:
        """Return the rewards that training uses.

        Args:
            call_kinds: The kind of each call.
            worth: Values by answer.
            by: Task and session of the rollout.
        """
        train = self.config.train
        used = verdict.value
        if attempt.outcome != "ok" and train.failed_rollouts == "leave_out":
            used = None
        used = self._controlled(step, by, "", used)
        if used is None:
            return _Payment(None, {})

        calls = attempt.transitions
        rewards: list[float | None] = [used] * len(calls)
        if train.credit != "shared":
            values = payments(
                train.credit, attempt, verdict, turns, worth, self._training_scorer.of_a_check
            )
            by_kind = dict(zip(call_kinds, values, strict=True))
            controlled = {}
            for kind, value in by_kind.items():
                # One control per kind, because calls of one kind are paid alike.
                controlled[kind] = self._controlled(step, by, kind, value)
            rewards = [controlled[kind] for kind in call_kinds]
        by_index = {}
        for call, reward in zip(calls, rewards, strict=True):
            if reward is not None and self._matches.search(call.role):
                by_index[call.index] = reward
        return _Payment(used, by_index)

    def _controlled(self, step: int, by: str, kind: str, value: float | None) -> float | None:
        """Return a reward after the control experiments that the run configures, if any."""
        if value is None:
            return None
        if inverts(self.config.seed, self.config.reward.inverted, step, by):
            value = self._training_scorer.of_a_check(value, False)
        if self.config.reward.shuffle:
            return self._shuffles[kind].draw(step, f"{by}/{kind}", value)
        return value

    def _fits(self, call: Transition) -> bool:
        """Return whether a call has exact token ids within the limits of a trained row."""
        limits = self.config.sampling
        return bool(
            call.prompt_ids
            and call.response_ids
            and len(call.prompt_ids) <= limits.max_prompt_tokens
            and len(call.response_ids) <= limits.max_response_tokens
        )

    def _check(self, attempt: Attempt) -> None:
        """Check that every response belongs to this rollout alone; rewards would be misplaced.

        Raises:
            AssertionError: A response was recorded for another rollout.
        """
        for call in attempt.transitions:
            belongs = call.rollout_id == attempt.rollout_id
            # Without exact token ids nothing is trained, and servers may number their answers as
            # they like.
            if belongs and call.prompt_ids is not None:
                try:
                    self._responses.claim(call.response_id)
                except Refusal:
                    belongs = False
            if not belongs:
                raise AssertionError(
                    f"response {call.response_id} of rollout {attempt.rollout_id} "
                    "was recorded for another one"
                )

    async def _score(
        self, task: Task, attempt: Attempt, answers: Sequence[str | None]
    ) -> tuple[Attempt, Verdict, Mapping[str, float | None]]:
        """Score an attempt's answer, and each of `answers` as if it were the attempt's answer.

        Returns:
            The attempt, which scoring may have failed; its verdict; values by answer.
        """
        attempt, verdict = await self._scorer.judge(task, attempt)
        worth: dict[str, float | None] = {}
        if attempt.outcome != "ok":
            return attempt, verdict, worth
        if attempt.answer is not None:
            worth[attempt.answer] = verdict.value
        for answer in answers:
            if answer is not None and answer not in worth:
                judged, other = await self._scorer.judge(task, replace(attempt, answer=answer))
                if judged.outcome != "ok":
                    return replace(judged, answer=attempt.answer), other, {}
                worth[answer] = other.value
        return attempt, verdict, worth
