"""An agent on LangGraph, as the literature's SQL example is one."""

import agentlightning as agl
from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from typing_extensions import TypedDict


class State(TypedDict, total=False):
    question: str
    query: str
    remarks: str


class SyncGraph(agl.LitAgent):
    """Synchronous, a graph of LangGraph on one URL, with a key that is not the gateway's, and a reward of its own."""

    program = "self_correcting_sql"

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

        def write_query(state: State) -> State:
            return {"query": chat.invoke(state["question"]).content}

        def check_query(state: State) -> State:
            return {"remarks": chat.invoke(f"Is it right? {state['query']}").content}

        graph = StateGraph(State)
        graph.add_node(write_query)
        graph.add_node(check_query)
        graph.add_edge(START, "write_query")
        graph.add_edge("write_query", "check_query")
        graph.add_edge("check_query", END)
        handler = self.tracer.get_langchain_handler()
        graph.compile().invoke({"question": task["question"]}, {"callbacks": [handler]})
        return 0.25
