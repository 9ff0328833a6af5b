"""The Python SDK's client from 2.0 on. Arguments: the command, and how it connects (auto, legacy or a version)."""

import asyncio
import os
import sys

from mcp import Client, StdioServerParameters


def client(command, args, extra, mode):
    return Client(StdioServerParameters(command=command, args=args, env={**os.environ, **extra}), mode=mode)


async def main():
    binary, mode = sys.argv[1:]
    is_alone = mode != "legacy"
    async with client(binary, ["mcp"], {}, mode) as plain:
        assert plain.protocol_version == ("2026-07-28" if is_alone else "2025-11-25"), plain.protocol_version
        if mode == "auto":
            found = plain.session.discover_result
            assert {"2026-07-28", "2025-11-25"} <= set(found.supported_versions), found
            assert "lease_renew" in found.instructions and found.capabilities.tools is not None, found
        listed = await plain.list_tools()
        tools = {tool.name: tool for tool in listed.tools}
        said = "NOT renewed" if is_alone else "renewed in the background until"
        assert said in tools["lease_acquire"].description, tools["lease_acquire"]
        if is_alone:
            assert listed.ttl_ms > 0 and listed.cache_scope == "public", listed
        granted = await plain.call_tool("lease_acquire", {"lease": "agent", "ttl": "60s"})
        assert not granted.is_error and granted.structured_content["renewed"] is not is_alone, granted
        token = granted.structured_content["token"]
        gate = ["mcp-gate", "--guard", "tools", "--every-call", "--", binary, "mcp"]
        async with client(binary, gate, {"LEASEHOLD_TOKEN": token}, mode) as gated:
            assert gated.protocol_version == plain.protocol_version, gated.protocol_version
            passed = await gated.call_tool("lease_show", {"lease": "agent"})
            assert not passed.is_error and passed.structured_content["epoch"] == 1, passed
            written = await gated.call_tool("fenced_write", {"file": "out", "content": "x", "token": token})
            assert not written.is_error and written.structured_content["status"] == "written", written
            handed = await plain.call_tool("lease_hand_off", {"lease": "agent", "to": "other", "why": "test"})
            assert handed.structured_content["output"]["epoch"] == 2, handed
            refused = await gated.call_tool("lease_show", {"lease": "agent"})
            assert refused.is_error and "held=1 seen=2" in refused.content[0].text, refused
            await gated.list_tools()
        late = await plain.call_tool("fenced_write", {"file": "out", "content": "y", "token": token})
        assert late.is_error and late.structured_content["kind"] == "fenced", late
        assert "stop the work" in late.content[0].text, late
        for status in ["released", "already_released"]:
            released = await plain.call_tool("lease_release", {"token": handed.structured_content["output"]["token"]})
            assert released.structured_content["status"] == status, released
        again = await plain.call_tool("lease_acquire", {"lease": "agent", "ttl": "60s"})
        assert again.structured_content["epoch"] == 3, again
    print("well")


asyncio.run(main())
