#!/bin/sh
# A supervisor gives a task that is under way to another runner.
set -eu
export LEASEHOLD_STORE="dir:$PWD/leases"

# The first runner does part of the task and leaves a checkpoint.
leasehold run task-17 --label runner-1 --ttl 10m --guard file:report.txt -- sh -c '
    ./agent.sh "echo part 1 | leasehold write report.txt" \
        "leasehold progress --checkpoint \"part 1 is done\"" \
        "touch waiting; until [ -e reassigned ]; do sleep 0.1; done" \
        "echo from the first | leasehold write report.txt" || touch stopped' & first=$!
until [ -e waiting ]; do sleep 0.1; done

# `run` ends the agent as soon as it hears that the task was taken. Here it does not hear, as on a machine that is too busy.
kill -STOP $first

# The supervisor reassigns the task. The first runner loses the lease in this very step.
token=$(leasehold hand-off task-17 --to runner-2 --why 'runner-1 is too slow')
touch reassigned

# The first agent is denied its next tool call, and told why.
until [ -e stopped ]; do sleep 0.1; done
test "$(cat report.txt)" = 'part 1'

# Its run hears of it in the end: exit code 75, the lease was lost.
kill -CONT $first
code=0; wait $first || code=$?
test $code = 75

# The second runner takes over where the first one was.
leasehold run task-17 --token "$token" --guard file:report.txt -- ./agent.sh \
    'leasehold show task-17 | grep "part 1 is done"' \
    'printf "part 1\npart 2\n" | leasehold write report.txt'

leasehold history task-17
test "$(tail -n 1 report.txt)" = 'part 2'
