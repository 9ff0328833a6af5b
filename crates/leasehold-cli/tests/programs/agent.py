"""A scripted agent: a client of the official SDK, and a host that asks the hook before each tool call."""

import asyncio
import json
import os
import subprocess
import sys
from contextlib import asynccontextmanager

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

# What hosts leave of the environment: no name that looks like a secret, and no address.
ENVIRONMENT = {name: os.environ[name] for name in ("PATH", "HOME", "LEASEHOLD_CONTEXT")}
# Servers for the shared folder, and for the clone in which this agent works.
FILES = ["leasehold", "mcp", "--root", os.environ["HOME"]]
REPOSITORY = ["leasehold", "mcp"]
GATE = ["leasehold", "mcp-gate", "--guard", "task", "--every-call", "--"]


def run(*words, given=None):
    return subprocess.run(words, input=given, capture_output=True, text=True, env=ENVIRONMENT)


def denied(tool):
    """The reason for which the hook denies a call; none if it lets it pass."""
    event = json.dumps({"hook_event_name": "PreToolUse", "tool_name": f"mcp__leasehold__{tool}"})
    done = run("leasehold", "hook", "claude", given=event)
    assert done.returncode == 0, done
    return json.loads(done.stdout).get("hookSpecificOutput", {}).get("permissionDecisionReason")


@asynccontextmanager
async def client(words):
    server = StdioServerParameters(command=words[0], args=words[1:], env=ENVIRONMENT)
    async with stdio_client(server) as (read, write):
        async with ClientSession(read, write) as session:
            await session.initialize()
            yield session


async def tool(session, name, arguments):
    """Calls a tool as a host does: not if the hook denies it."""
    reason = denied(name)
    assert reason is None, reason
    result = await session.call_tool(name, arguments)
    assert not result.isError, result
    return result


def commit(subject):
    done = run("git", "commit", "-q", "--allow-empty", "-m", subject)
    assert done.returncode == 0, done


async def appears(name):
    path = os.path.join(os.environ["HOME"], name)
    while not os.path.exists(path):
        await asyncio.sleep(0.02)


def tell(name, what):
    """Leaves a file, whole."""
    path = os.path.join(os.environ["HOME"], name)
    with open(path + ".new", "w") as file:
        json.dump(what, file)
    os.rename(path + ".new", path)


async def first(token):
    write = {"file": "report.txt", "content": "part 1\n", "token": token}
    push = {"remote": "origin", "refspecs": ["main"], "token": token}
    async with client(GATE + FILES) as gated, client(FILES) as files, client(REPOSITORY) as repository:
        await tool(gated, "fenced_write", write)
        commit("part 1")
        await tool(repository, "fenced_push", push)
        assert run("leasehold", "progress", "--checkpoint", "part 1 is done").returncode == 0
        tell("parted", token)
        await appears("reassigned")
        late = {**write, "content": "by the first\n"}
        commit("too late")
        refused = await gated.call_tool("fenced_write", late)
        # Past the gate.
        written = await files.call_tool("fenced_write", late)
        pushed = await repository.call_tool("fenced_push", push)
        report = os.path.join(os.environ["HOME"], "report.txt")
        tell(
            "first.json",
            {
                "hook": denied("fenced_write"),
                "gate": {"refused": refused.isError, "text": refused.content[0].text},
                "server": [[result.isError, result.content[0].text] for result in (written, pushed)],
                "commands": [
                    run("leasehold", "push", "origin", "main").returncode,
                    run("leasehold", "write", report, given="by the first\n").returncode,
                ],
            },
        )


async def second(token):
    shown = json.loads(run("leasehold", "show", "task", "--json").stdout)
    assert shown["progress"]["checkpoint"] == "part 1 is done", shown
    assert run("git", "pull", "-q", "--ff-only", "origin", "main").returncode == 0
    async with client(GATE + FILES) as files, client(GATE + REPOSITORY) as repository:
        await tool(files, "fenced_write", {"file": "report.txt", "content": "part 1\npart 2\n", "token": token})
        commit("part 2")
        await tool(repository, "fenced_push", {"remote": "origin", "refspecs": ["main"], "token": token})


with open(os.environ["LEASEHOLD_CONTEXT"]) as context:
    asyncio.run({"first": first, "second": second}[sys.argv[1]](json.load(context)["token"]))
