"""An agent on LangGraph, as the literature's SQL example is one."""

import agentlightning as agl
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict

from harness.records import Problem


class State(TypedDict, total=False):
    question: str
    query: str
    remarks: str


class SyncGraph(agl.LitAgent):
    """Synchronous, a graph of LangGraph on one URL, with a key that is not the gateway's, and a reward of its own."""

    program = "self_correcting_sql"

    def ask(self, chat, prompt):
        return chat.invoke(prompt).content

    def rollout(self, task, resources, rollout):
        assert task["query"] is None
        llm = resources["main_llm"]
        url = llm.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id)
        chat = ChatOpenAI(
            model=llm.model,
            base_url=url,
            api_key="dummy",
            max_retries=0,
            **llm.sampling_parameters,
        )

        prompts = resources["toolbox"].prompts
        problem = Problem(task["id"], task["question"], {"schema": task["schema"]})

        def write_query(state: State) -> State:
            reply = self.ask(chat, prompts.write(problem).messages)
            return {"query": prompts.parse_sql(reply)}

        def check_query(state: State) -> State:
            result = resources["toolbox"].execute(state["query"])
            return {
                "remarks": self.ask(chat, prompts.check(problem, state["query"], result).messages)
            }

        graph = StateGraph(State)
        graph.add_node(write_query)
        graph.add_node(check_query)
        graph.add_edge(START, "write_query")
        graph.add_edge("write_query", "check_query")
        graph.add_edge("check_query", END)
        handler = self.tracer.get_langchain_handler()
        graph.compile().invoke({"question": task["question"]}, {"callbacks": [handler]})
        return 0.25


class Persistent(SyncGraph):
    """Replaces a call that fails by a shorter one, as the literature's SQL example does."""

    def ask(self, chat, prompt):
        try:
            return super().ask(chat, prompt)
        except Exception:
            return super().ask(chat, "Write any query.")
