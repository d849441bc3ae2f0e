"""A server over stdio that offers one tool: `python schema_server.py OPTIONS`, which are a JSON object.

`tool` is laid over the tool's definition, `content` is its structured content, `pages` are the pages in which
it lists its tools (0: without an end), each after `delay_s`. `strangers` is content that it sends before each
result of a call: with an unknown id, and with the ids of all earlier requests.
"""

import json
import sys
import time

options = json.loads(sys.argv[1])
tool = {"name": "look", "description": "Look.", "inputSchema": {"type": "object"}}
tool.update(options.get("tool", {}))
ABOUT = {
    "protocolVersion": "2025-06-18",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "schemas", "version": "1"},
}


def answer(method: str, params: dict) -> dict:
    if method == "initialize":
        return ABOUT
    if method == "tools/list":
        time.sleep(options.get("delay_s", 0))
        page = int(params.get("cursor") or 0) + 1
        found = {"tools": [{**tool, "name": f"look{page}" if page > 1 else "look"}]}
        return found if page == options.get("pages", 1) else {**found, "nextCursor": str(page)}
    if method == "tools/call":
        text = json.dumps(options["content"])
        return {
            "content": [{"type": "text", "text": text}],
            "structuredContent": options["content"],
        }
    return {}


def send(number: int | str, result: dict) -> None:
    message = {"jsonrpc": "2.0", "id": number, "result": result}
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


earlier: list[int | str] = []
for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:
        if request["method"] == "tools/call" and "strangers" in options:
            wrong = {"content": [{"type": "text", "text": options["strangers"]}]}
            for number in (request["id"] + 1, 10**6, "of-another-session", *earlier):
                send(number, wrong)
        send(request["id"], answer(request["method"], request.get("params") or {}))
        earlier.append(request["id"])
