"""The Python SDK's client before 2.0: a handshake, a session, and the gate. Arguments: the command."""

import asyncio
import os
import sys

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client


def server(command, args, extra):
    return stdio_client(StdioServerParameters(command=command, args=args, env={**os.environ, **extra}))


async def main():
    binary = sys.argv[1]
    async with server(binary, ["mcp"], {}) as (read, write), ClientSession(read, write) as session:
        hello = await session.initialize()
        assert hello.serverInfo.name == "leasehold" and hello.protocolVersion == "2025-11-25", hello
        tools = {tool.name: tool for tool in (await session.list_tools()).tools}
        assert {"lease_acquire", "lease_release", "fenced_write"} <= set(tools), tools
        assert "renewed in the background until" in tools["lease_acquire"].description, tools["lease_acquire"]
        await session.send_ping()
        granted = await session.call_tool("lease_acquire", {"lease": "agent", "ttl": "60s"})
        assert not granted.isError and granted.structuredContent["status"] == "granted", granted
        token = granted.structuredContent["token"]
        wrong = await session.call_tool("fenced_write", {"file": "../x", "content": "", "lease": "agent"})
        assert wrong.isError and "climbs" in wrong.content[0].text, wrong
        unknown = await session.call_tool("lease_acquire", {"name": "agent"})
        assert unknown.isError and "`lease` (needed)" in unknown.content[0].text, unknown
        gate = ["mcp-gate", "--guard", "tools", "--every-call", "--", binary, "mcp"]
        async with server(binary, gate, {"LEASEHOLD_TOKEN": token}) as (read2, write2):
            async with ClientSession(read2, write2) as gated:
                await gated.initialize()
                passed = await gated.call_tool("lease_show", {"lease": "agent"})
                assert not passed.isError and passed.structuredContent["epoch"] == 1, passed
                handed = await session.call_tool("lease_hand_off", {"lease": "agent", "to": "other", "why": "test"})
                assert handed.structuredContent["output"]["epoch"] == 2, handed
                refused = await gated.call_tool("lease_show", {"lease": "agent"})
                assert refused.isError and "held=1 seen=2" in refused.content[0].text, refused
                await gated.list_tools()
        for status in ["released", "already_released"]:
            released = await session.call_tool("lease_release", {"token": handed.structuredContent["output"]["token"]})
            assert released.structuredContent["status"] == status, released
        again = await session.call_tool("lease_acquire", {"lease": "agent"})
        assert again.structuredContent["epoch"] == 3, again
    print("well")


asyncio.run(main())
