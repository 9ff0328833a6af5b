#!/bin/sh
# A queue of tasks, and a fleet of agents that takes them.
set -eu
export LEASEHOLD_STORE="sqlite:$PWD/leases.db"

# Yesterday's worker has a task in its hands and does not move.
leasehold queue add tasks --key parser --text parser
old=$(leasehold queue claim tasks --label yesterday)

# Today's tasks. A key adds a task once, however often the planner says it. An operator puts the stuck one back in line.
for task in parser docs tests; do
    leasehold queue add tasks --key "$task" --text "$task" --backoff 1s
done
leasehold queue retry tasks k.parser --why 'its worker is gone'

# What the fleet runs for each task. The first attempt at `docs` crashes after a checkpoint; the next one goes on from there.
cat >task.sh <<'EOF'
task=$(cat)
if [ "$task" = docs ] && [ -z "$LEASEHOLD_CHECKPOINT" ]; then
    ./agent.sh 'leasehold queue progress tasks --checkpoint "outline written"'
    exit 1
fi
./agent.sh "echo '$task: ${LEASEHOLD_CHECKPOINT:-from the start}' | leasehold write 'out-$task.txt'"
EOF

# Two machines, two agents each. They end when no task is left anywhere.
leasehold work tasks -j 2 --label box-1 --until-done -- sh task.sh & first=$!
leasehold work tasks -j 2 --label box-2 --until-done -- sh task.sh & second=$!
wait $first
wait $second

# Yesterday's worker wakes up. Its completion is too late: refused with 13, and nothing changes.
code=0; leasehold queue complete tasks --token "$old" --result late || code=$?
test $code = 13

leasehold queue ls tasks
test "$(cat out-docs.txt)" = 'docs: outline written'
test "$(ls out-*.txt | wc -l)" -eq 3
