"""Agents as users of Agent Lightning write them."""

import agentlightning as agl
import openai

from harness.records import Problem


class AsyncLoop(agl.LitAgent):
    """Asynchronous, with the environment's tool, one model a role."""

    program = "self_correcting_sql"
    roles = ("write_query", "check_query", "rewrite_query")

    async def ask(self, prompt, resources):
        llm = resources[prompt.role]
        async with openai.AsyncOpenAI(
            base_url=llm.endpoint, api_key=llm.api_key, max_retries=0
        ) as client:
            reply = await client.chat.completions.create(
                model=llm.model, messages=prompt.messages, **llm.sampling_parameters
            )
        return reply.choices[0].message.content or ""

    async def rollout_async(self, task, resources, rollout):
        toolbox = resources["toolbox"]
        prompts = toolbox.prompts
        problem = Problem(task["id"], task["question"], {"schema": task["schema"]})
        sql = prompts.parse_sql(await self.ask(prompts.write(problem), resources))
        for _ in range(1, toolbox.max_turns):
            result = await toolbox.execute(sql)
            remarks = await self.ask(prompts.check(problem, sql, result), resources)
            if prompts.approves(remarks):
                break
            prompt = prompts.rewrite(problem, sql, result, remarks)
            sql = prompts.parse_sql(await self.ask(prompt, resources))
        return sql


class Phases(agl.LitAgent):
    """Does something else in training than in validation, and emits its reward."""

    program = "tool_loop"

    def ask(self, resources, text):
        llm = resources["main_llm"]
        client = openai.OpenAI(base_url=llm.endpoint, api_key="dummy", max_retries=0)
        client.chat.completions.create(
            model=llm.model, messages=[{"role": "user", "content": text}], **llm.sampling_parameters
        )

    def training_rollout(self, task, resources, rollout):
        assert rollout.mode == "train"
        self.ask(resources, "training")
        agl.emit_reward(0.75)

    def validation_rollout(self, task, resources, rollout):
        assert rollout.mode == "val"
        self.ask(resources, "validation")


@agl.rollout
def decorated(task, llm, rollout):
    client = openai.OpenAI(base_url=llm.endpoint, api_key=llm.api_key, max_retries=0)
    client.chat.completions.create(
        model=llm.model,
        messages=[{"role": "user", "content": task["question"]}],
        **llm.sampling_parameters,
    )
    return 1.0


class Greedy(agl.LitAgent):
    """Looks for gold."""

    program = "tool_loop"

    def rollout(self, task, resources, rollout):
        return float(len(task["gold"]))
