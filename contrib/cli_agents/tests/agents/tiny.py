"""A command-line agent in one file: chat completions over HTTP, tools of an MCP server over stdio.

It reads its settings from `settings.json` of its working folder, and the question from stdin.
"""

import json
import os
import subprocess
import sys
import urllib.request


class Tools:
    """A client of the MCP server that `mcp.json` names."""

    def __init__(self):
        with open("mcp.json", encoding="utf-8") as file:
            server = json.load(file)["mcpServers"]["tools"]
        self._process = subprocess.Popen(
            [server["command"], *server["args"]], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._number = 0
        client = {"name": "tiny", "version": "1"}
        self._ask("initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo=client)
        self._write({"jsonrpc": "2.0", "method": "notifications/initialized"})
        self.offered = self._ask("tools/list")["tools"]

    def call(self, name, text):
        try:
            arguments = json.loads(text)
        except (ValueError, RecursionError):
            arguments = None
        if not isinstance(arguments, dict):
            return "Error: the arguments are no JSON object"
        return self._ask("tools/call", name=name, arguments=arguments)["content"][0]["text"]

    def _ask(self, method, **params):
        self._number += 1
        self._write({"jsonrpc": "2.0", "id": self._number, "method": method, "params": params})
        while True:
            answer = json.loads(self._process.stdout.readline())
            if answer.get("id") == self._number:
                return answer["result"]

    def _write(self, message):
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()


def complete(settings, messages, tools):
    definitions = [
        {
            "type": "function",
            "function": {
                "name": tool["name"],
                "description": tool["description"],
                "parameters": tool["inputSchema"],
            },
        }
        for tool in tools
    ]
    body = {"model": os.environ["OPENAI_MODEL"], "messages": messages, **settings["sampling"]}
    if definitions:
        body["tools"] = definitions
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps(body).encode(),
        {
            "content-type": "application/json",
            "authorization": "Bearer " + os.environ["OPENAI_API_KEY"],
        },
    )
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(request) as answer:
        return json.load(answer)["choices"][0]["message"]


def main():
    with open("settings.json", encoding="utf-8") as file:
        settings = json.load(file)
    tools = Tools()
    messages = [{"role": "user", "content": sys.stdin.read()}]
    turn = 0
    while True:
        reply = complete(settings, messages, tools.offered)
        calls = reply.get("tool_calls") or []
        if not calls or turn == settings["max_turns"]:
            break
        turn += 1
        messages.append({"role": "assistant", "content": reply["content"], "tool_calls": calls})
        for call in calls:
            text = tools.call(call["function"]["name"], call["function"]["arguments"])
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})
    answer = reply["content"] or ""
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w", encoding="utf-8") as file:
            file.write(answer)
    else:
        sys.stdout.write(answer)


main()
