#!/bin/sh
# Stands for a coding agent and its host. Each argument is a tool call. Before a call it asks the hook, as Claude Code does,
# and it stops at the first call that is denied. After a call it reports progress.
for call in "$@"; do
    answer=$(echo '{"hook_event_name":"PreToolUse","tool_name":"Bash"}' | leasehold hook claude) || answer='the hook failed'
    case $answer in
    '{}') ;;
    *) echo "stopped before \`$call\`: $answer" >&2; exit 2 ;;
    esac
    sh -c "$call" || exit 1
    echo '{"hook_event_name":"PostToolUse","tool_name":"Bash"}' | leasehold hook claude >/dev/null
done
