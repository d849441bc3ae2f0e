"""A server that can be made to misbehave: `python mcp_server.py [http [json_response]]`; it says its port first."""

import asyncio
import os
import socket
import sys
import time

import uvicorn
from mcp.server.fastmcp import FastMCP, Image
from mcp.server.fastmcp.exceptions import ToolError

server = FastMCP("odd", log_level="CRITICAL", json_response="json_response" in sys.argv)
kept: list[str] = []


@server.tool()
async def echo(text: str) -> str:
    """Say it again."""
    return text


@server.tool()
async def remember(text: str) -> str:
    """Keep a text."""
    kept.append(text)
    return f"{len(kept)} kept"


@server.tool()
async def recall() -> str:
    """What is kept."""
    return ", ".join(kept) or "nothing"


@server.tool()
async def misbehave(how: str) -> object:
    """Do something that a server should not."""
    if how == "refuse":
        raise ToolError("I would rather not.")
    if how == "die":
        sys.stderr.write("out of paper\n")
        sys.stderr.flush()
        os._exit(3)
    if how == "slow":
        await asyncio.sleep(60)
    if how == "hang":
        time.sleep(60)
    if how == "big":
        return "x" * (50 << 20)
    if how == "print":
        sys.stdout.write("not a message\n")
        sys.stdout.flush()
    if how == "key":
        return f"my key is {os.environ.get('ODD_KEY')}"
    if how == "image":
        return [Image(data=b"1234567", format="png"), "and words"]
    if how == "more tools":
        server.add_tool(recall, "another", "One more.")
    if how == "fewer tools":
        del server._tool_manager._tools["recall"]
    if how == "forget sessions":
        server.session_manager._server_instances.clear()
    return how


@server.resource("state://kept")
def state() -> str:
    return "\n".join(kept)


def http() -> None:
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    sys.stdout.write(f"{listening.getsockname()[1]}\n")
    sys.stdout.flush()
    app = server.streamable_http_app()

    async def guarded(scope, receive, send):
        key = os.environ.get("ODD_KEY")
        if scope["type"] == "http" and key and (b"x-key", key.encode()) not in scope["headers"]:
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        await app(scope, receive, send)

    uvicorn.Server(uvicorn.Config(guarded, log_level="critical")).run(sockets=[listening])


if "http" in sys.argv:
    http()
else:
    server.run()
