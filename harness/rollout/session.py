"""One rollout from task to episode: enqueue, wait, score, record, and hand back what may be trained.

Runs where gold is known: in verl's agent-loop workers and in an evaluation. Agents run elsewhere
and never see it.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from harness.config import Config
from harness.deadlines import DeadlinePassed, Raised, within
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
from harness.programs import Turn
from harness.records import Attempt, Task, Transition, Verdict
from harness.results.episodes import episode_row, transition_rows
from harness.results.folder import RowLog, RunFolder
from harness.rollout.client import RolloutClient
from harness.rollout.credit import kinds, payments
from harness.rollout.request import Phase, RolloutRequest
from harness.rollout.spool import Spool, chosen
from harness.scoring import Scorer
from harness.sections import EvalConfig
from harness.wording import agent_label

if TYPE_CHECKING:
    from agentlightning.store.base import LightningStore


@dataclass(frozen=True, slots=True)
class Scored:
    """What one rollout came to.

    Attributes:
        reward: The verdict, None when unscored.
        reason: Why that, or why unscored.
        used: What training is given for it; None leaves the rollout out of its group.
        calls: What may be trained, with the engine's own token ids; in validation the policy's last
            call.
        kinds: Of each of `calls` its role and position.
        values: What calls of trained roles are worth, by kind; also those that are too long to
            train.
        turns: Calls of roles that do not only check.
    """

    reward: float | None
    reason: str
    used: float | None
    calls: tuple[Transition, ...]
    kinds: tuple[str, ...]
    values: Mapping[str, float]
    turns: int
    elapsed_s: float


REMEMBERED = 20_000
"""Responses of the last rollouts, none of which may come again; the gateway remembers more."""


class RewardShuffle:
    """The control experiment: replace each verdict with that of some rollout of the previous step.

    This keeps the distribution of rewards but cuts their link to the behaviour. The choice follows
    from the seed and the
    rollout: two runs with equal behaviour have equal controls, in any order of their rollouts.
    Without a previous step, the verdict comes from the same one.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._known: dict[int, list[float]] = defaultdict(list)

    def note(self, step: int, reward: float) -> None:
        """One more verdict of a step."""
        self._known[step].append(reward)

    def draw(self, step: int, who: str, reward: float) -> float:
        """Return another rollout's verdict for `who`, and offer `reward` to others."""
        self.note(step, reward)
        earlier = max((known for known in self._known if known < step), default=step)
        for over in [known for known in self._known if known < earlier]:
            del self._known[over]
        return random.Random(f"{self._seed}/{step}/{who}").choice(sorted(self._known[earlier]))


def inverts(seed: int, share: float, step: int, who: str) -> bool:
    """Whether `who` is among the share of a step's rollouts that are trained with the opposite verdict."""
    return share > 0 and random.Random(f"{seed}/inverted/{step}/{who}").random() < share


class Session:
    """All rollouts that one process asks for.

    Args:
        model: The name under which the policy's servers know it.
        store: agentlightning's store, or a client of one elsewhere.
        validation: How validation samples; greedily, one rollout a task, by default.
    """

    def __init__(
        self,
        config: Config,
        model: str,
        store: LightningStore,
        control: GatewayControl,
        folder: RunFolder,
        validation: EvalConfig | None = None,
    ) -> None:
        self.config = config
        self.model = model
        self._task_set = make_task_set(config)
        self._tasks: dict[Phase, dict[str, Task]] = {
            "train": {task.id: task for task in self._task_set.load(config.task.train_split)},
            "val": {task.id: task for task in self._task_set.load(config.task.val_split)},
        }
        self._program = program(program_of(config.agent))
        self._scorer = Scorer(config, folder.reward, roles_of(config.agent))
        self._environment = environment(environment_of(config.task.name))
        self._validation = validation or EvalConfig()
        self._client = RolloutClient(store)
        self._control = control
        self._episodes = RowLog(folder, "episodes")
        self._transitions = (
            RowLog(folder, "transitions") if self.config.rollout.keep_transitions else None
        )
        self._spool = Spool(folder.shadow)
        self._matches = re.compile(trained_by(self.config.agent, self.config.agent_match))
        self._responses = SeenIds(REMEMBERED)
        self._shuffles = defaultdict[str, RewardShuffle](lambda: RewardShuffle(self.config.seed))
        """By what is paid: a rollout, or a kind of call."""

    async def connect(self, addresses: list[str]) -> None:
        """Point the gateway at the policy's servers, `host:port` each."""
        upstreams = [f"http://{address}/v1" for address in addresses]
        await self._control.set_upstreams(upstreams, model=self.model, token_ids=True)

    def tasks(self, phase: Phase) -> list[Task]:
        """All tasks of a phase."""
        return list(self._tasks[phase].values())

    async def rollout(self, task_id: str, phase: Phase, step: int, session: int) -> Scored:
        """Run one rollout and record its episode.

        In validation the policy's last transition represents the rollout, whatever `agent_match`
        selects.
        """
        task = self._tasks[phase][task_id]
        context, temperature = self._task_set.context(task), self._validation.temperature
        request = RolloutRequest.build(
            task, context, self.config, phase, step, session, temperature
        )
        attempt = await self._client.run(
            request, {"step": step, "task": task.id, "session": session}
        )
        self._check(attempt)
        share, who = self.config.rollout.shadow_share, f"{task.id}/{session}"
        if chosen(self.config.seed, share, phase, step, who):
            self._spool.add(request, attempt, self.model, phase, step)
        turns = self._program.turns(attempt)
        first = turns[0].answer if turns else None
        drafts = turns if phase == "train" and self.config.train.credit != "shared" else turns[:1]
        attempt, reward, worth = await self._score(task, attempt, [turn.answer for turn in drafts])
        used, calls = reward.value, attempt.transitions
        of = kinds(calls, turns)
        paid: dict[int, float] = {}
        if phase == "train":
            if attempt.outcome != "ok" and self.config.train.failed_rollouts == "leave_out":
                used = None
            asks = partial(self._drawn, step, f"{task.id}/{session}")
            used = asks("", used)
            if used is not None:
                paid = self._paid(attempt, reward, turns, of, worth, used, asks)
        elif self.config.reward.shuffle and step == 0 and used is not None:
            self._shuffles[""].note(step, used)
        kind_of = dict(zip((call.index for call in calls), of, strict=True))
        values = {kind_of[index]: value for index, value in paid.items()}
        paid = {
            call.index: paid[call.index]
            for call in calls
            if call.index in paid and self._fits(call)
        }

        row = episode_row(
            task,
            attempt,
            reward,
            reward_version=self._scorer.version,
            agent=agent_label(self.config.agent),
            phase=phase,
            step=step,
            session=session,
            paid=paid,
            first_answer=first,
            first_reward=worth.get(first) if first is not None else None,
            rewrites=sum(call.role in self._program.revisers for call in attempt.transitions),
            used_reward=used if phase == "train" else None,
            meaning=await self._meaning(task, attempt) if phase == "val" else None,
        )
        self._episodes.add([row])
        if self._transitions is not None:
            self._transitions.add(transition_rows(attempt, phase=phase, step=step, paid=paid))
        given = [call for call in calls if call.index in paid]
        if phase == "val":
            given = self._last(calls)
        return Scored(
            reward.value,
            reward.reason,
            used,
            tuple(given),
            tuple(kind_of[call.index] for call in given),
            values,
            sum(call.role not in self._program.checkers for call in calls),
            attempt.elapsed_s,
        )

    def _last(self, calls: Sequence[Transition]) -> list[Transition]:
        """The policy's last transition, where there is one."""
        return [call for call in calls if call.response_ids and call.role not in self.config.roles][
            -1:
        ]

    async def _meaning(self, task: Task, attempt: Attempt) -> str | None:
        """Return a hash of the normalized answer if a task has several answers.

        None without a vote.
        """
        answer = attempt.answer
        if self._validation.samples == 1 or attempt.outcome != "ok" or answer is None:
            return None
        try:
            found = await within(
                self.config.reward.timeout_s, lambda: self._environment.meaning(task, answer)
            )
        except (DeadlinePassed, Raised):
            return None
        return (
            None
            if found is None
            else hashlib.sha256(found.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        )

    def _paid(
        self,
        attempt: Attempt,
        verdict: Verdict,
        turns: Sequence[Turn],
        of: Sequence[str],
        worth: Mapping[str, float | None],
        used: float,
        asks: Callable[[str, float | None], float | None],
    ) -> dict[int, float]:
        """Return the rewards of trained calls by index, without unknown ones.

        `of` has their kinds.
        """
        calls, credit = attempt.transitions, self.config.train.credit
        if credit == "shared":
            found: list[float | None] = [used] * len(calls)
        else:
            worth_of = payments(credit, attempt, verdict, turns, worth, self._scorer.of_a_check)
            by_kind = dict(zip(of, worth_of, strict=True))
            drawn = {kind: asks(kind, value) for kind, value in by_kind.items()}
            found = [drawn[kind] for kind in of]
        return {
            call.index: value
            for call, value in zip(calls, found, strict=True)
            if value is not None and self._matches.search(call.role)
        }

    def _drawn(self, step: int, who: str, of: str, value: float | None) -> float | None:
        if value is None:
            return None
        if inverts(self.config.seed, self.config.reward.inverted, step, who):
            value = self._scorer.of_a_check(value, False)
        return (
            self._shuffles[of].draw(step, f"{who}/{of}", value)
            if self.config.reward.shuffle
            else value
        )

    def _fits(self, call: Transition) -> bool:
        limits = self.config.sampling
        return bool(
            call.prompt_ids
            and call.response_ids
            and len(call.prompt_ids) <= limits.max_prompt_tokens
            and len(call.response_ids) <= limits.max_response_tokens
        )

    def _check(self, attempt: Attempt) -> None:
        """A response may belong to one rollout only.

        Anything else would misplace rewards in silence.
        """
        for call in attempt.transitions:
            try:
                # Without exact token ids nothing is trained, and servers may number their answers as they like.
                if call.prompt_ids is not None:
                    self._responses.claim(call.response_id)
                well = call.rollout_id == attempt.rollout_id
            except Refusal:
                well = False
            if not well:
                raise AssertionError(
                    f"response {call.response_id} of rollout {attempt.rollout_id} was recorded for another one"
                )

    async def _score(
        self, task: Task, attempt: Attempt, answers: Sequence[str | None]
    ) -> tuple[Attempt, Verdict, Mapping[str, float | None]]:
        """The attempt, the verdict on its answer, and the value of its answer and of each of `answers`, by answer."""
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
