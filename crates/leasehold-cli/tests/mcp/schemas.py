"""Calls every tool, well and badly, and checks what is sent and answered against the schemas that the server gives.

Arguments: the command, and `session` or `alone`. The folder is a git repository with a remote `origin`, and has a folder `site`.
"""

import json
import subprocess
import sys

from jsonschema import Draft202012Validator

binary, form = sys.argv[1:]
meta = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
server = subprocess.Popen([binary, "mcp"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def ask(method, params):
    if form == "alone":
        params = {**params, "_meta": meta}
    server.stdin.write(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}) + "\n")
    server.stdin.flush()
    return json.loads(server.stdout.readline())["result"]


if form == "session":
    ask("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}})
tools = {tool["name"]: tool for tool in ask("tools/list", {})["tools"]}
for tool in tools.values():
    for schema in ["inputSchema", "outputSchema"]:
        assert tool[schema]["type"] == "object", tool
        Draft202012Validator.check_schema(tool[schema])
seen = {}


def call(name, arguments, wanted):
    """Calls a tool; `wanted` is the status or, of a failure, the kind."""
    tool, result = tools[name], ask("tools/call", {"name": name, "arguments": arguments})
    content, is_error = result["structuredContent"], result["isError"]
    Draft202012Validator(tool["outputSchema"]).validate(content)
    sent_well = Draft202012Validator(tool["inputSchema"]).is_valid(arguments)
    assert sent_well or is_error, (name, arguments, result)
    assert (content["kind"] if is_error else content.get("status", "shown")) == wanted, (name, arguments, result)
    # The one form does not fit the other: a schema that takes everything would show nothing.
    other = {"status": "nonsense"} if not is_error else {"kind": "nonsense", "message": "", "next": ""}
    assert not Draft202012Validator(tool["outputSchema"]).is_valid(other), name
    seen.setdefault(name, set()).add(wanted)
    return content


token = call("lease_acquire", {"lease": "job", "ttl": "5m", "label": "me"}, "granted")["token"]
call("lease_acquire", {"lease": "job"}, "invalid" if form == "session" else "held")
call("lease_renew", {"token": token}, "held")
call("lease_list", {}, "found")
call("lease_list", {"pattern": "j*", "held": True, "all": True, "limit": 0}, "found")
call("lease_show", {"lease": "job"}, "shown")
call("lease_show", {"lease": "never"}, "shown")
call("lease_progress", {"marker": "half", "token": token}, "noted")
call("lease_checkpoint", {"checkpoint": '{"row": 5}', "token": token}, "noted")
call("lease_checkpoint", {"checkpoint": "x" * 5000, "token": token}, "invalid")
call("fenced_write", {"file": "out", "content": "x", "token": token}, "written")
call("fenced_publish", {"folder": "site", "target": "www", "token": token}, "done")
call("fenced_publish", {"folder": "site", "target": "../www", "token": token}, "invalid")
call("fenced_publish", {"folder": "/etc", "target": "www", "token": token}, "invalid")
call("fenced_push", {"remote": "origin", "refspecs": ["main"], "rebase": True, "token": token}, "done")
call("fenced_push", {"remote": "--all", "token": token}, "invalid")
added = call("queue_add", {"queue": "mail", "payload": "y" * 20000, "key": "one", "priority": 3, "attempts": 2}, "done")
assert added["output"]["new"] is True, added
assert call("queue_add", {"queue": "mail", "payload": "", "key": "one"}, "done")["output"]["new"] is False
claimed = call("queue_claim", {"queue": "mail", "ttl": "1m", "label": "me"}, "done")["output"]
assert claimed["payload"] == "y" * 20000, claimed
item = {"queue": "mail", "token": claimed["token"]}
call("lease_renew", {"token": claimed["token"]}, "held")
call("lease_release", {"token": claimed["token"]}, "invalid")
call("lease_checkpoint", {"checkpoint": "page 3", "token": claimed["token"]}, "noted")
call("queue_fail", {**item, "why": "no network", "retry_in": "1ms"}, "done")
call("queue_complete", item, "fenced")
claimed = call("queue_claim", {"queue": "mail", "wait": "90s"}, "done")["output"]
assert claimed["checkpoint"] == "page 3", claimed
call("queue_claim", {"queue": "mail"}, "none")
call("queue_claim", {"queue": "mail", "wait": "91s"}, "invalid")
call("queue_complete", {"queue": "mail", "token": claimed["token"], "result": "sent"}, "done")
call("lease_hand_off", {"lease": "job", "to": "runner-2", "why": "it is stuck", "if_epoch": 7}, "fenced")
handed = call("lease_hand_off", {"lease": "job", "to": "runner-2", "why": "it is stuck", "if_epoch": 1, "by": "me"}, "done")
assert handed["output"]["epoch"] == 2, handed
# The former holder is stopped everywhere.
call("lease_renew", {"token": token}, "lost")
call("lease_release", {"token": token}, "lost")
call("fenced_write", {"file": "out", "content": "late", "token": token}, "fenced")
call("fenced_publish", {"folder": "site", "target": "www", "token": token}, "fenced")
call("fenced_push", {"remote": "origin", "refspecs": ["main"], "token": token}, "fenced")
call("lease_checkpoint", {"checkpoint": "late", "token": token}, "lost")
call("lease_release", {"token": handed["output"]["token"], "failed": True}, "released")
call("lease_release", {"token": handed["output"]["token"]}, "already_released")
granted = call("lease_acquire", {"lease": "job"}, "granted")
assert granted["checkpoint"] == '{"row": 5}', granted
for name in tools:
    call(name, {"no_such": 1}, "invalid")
    assert len(seen.get(name, ())) > 1, f"{name} was not called well"
server.stdin.close()
assert server.wait() == 0
print("well")
