#!/bin/sh
# One night: two schedulers and a worker, a job that fails, one that hangs, a machine that dies, an operator who drains.
#
#   NIGHT_STORE=postgres://db.internal/jobs NIGHT_HOOK=https://hooks.example.org/x NIGHT_SECRET=whsec_... sh night.sh FOLDER
#
# What happened is in FOLDER then, as a reader finds it in the morning: the logs of each machine (JSON), `runs`, `logs`,
# `queue show`, the numbers, and what was said to the operator. Nothing here waits for a time: only for what has happened.
set -eu
export NIGHT_SECRET
mkdir -p "$1" && cd "$1"
PATIENCE=${NIGHT_PATIENCE:-180}

# until_so WHAT COMMAND...: waits until the command succeeds.
until_so() {
    what=$1 waited=0
    shift
    until "$@" >/dev/null 2>&1; do
        waited=$((waited + 1))
        if [ $waited -gt $((PATIENCE * 5)) ]; then
            echo "not so after ${PATIENCE}s: $what" >&2
            exit 1
        fi
        sleep 0.2
    done
}

# machine NAME VERB...: a machine, with a log of its own.
machine() {
    name=$1
    shift
    LEASEHOLD_LABEL=$name LEASEHOLD_LOG_FORMAT=json leasehold "$@" >"$name.out" 2>"$name.log" &
    echo $! >"$name.pid"
}

# A process and all below it, the topmost first.
tree() {
    echo "$1"
    for child in $(ps -o pid= --ppid "$1"); do tree "$child"; done
}

# Ends every machine that is left, at once.
power_off() {
    for box in box-?.pid; do
        if test -e $box; then kill -9 $(tree "$(cat $box)") 2>/dev/null || :; fi
    done
}
trap power_off EXIT

told() { leasehold queue ls leasehold.notify.ops --state done --json | grep -o '"id"' | wc -l; }
are_told() { [ "$(told)" -ge "$1" ]; }
has_ended() { leasehold runs "$1" --json | grep -q '"fate":"\(succeeded\|failed\)"'; }
is_state() { leasehold queue show mail "$1" --json | grep -q "\"state\":\"$2\""; }

# The slots of tonight: `export` comes first, the others when it is certain who is left to run them.
plan() {
    first=$(($(date +%s) + $1)) second=$(($(date +%s) + $1 + 20))
    at() { date -u -d "@$1" '+%-S %-M %-H %-d %-m *'; }
    cat >leasehold.toml <<END
store = "$NIGHT_STORE?namespace=night-$1"
ttl = "10s"

[[notify]]
name = "ops"
on = ["failed", "lost", "dead_letter", "recovered"]
webhook = "$NIGHT_HOOK"
secret_env = "NIGHT_SECRET"

[[job]]                 # runs when its machine dies
name = "export"
cron = "$(at $first)"
command = "echo exporting under epoch \$LEASEHOLD_EPOCH; echo \$\$ >export.\$LEASEHOLD_EPOCH; until test -e go.\$LEASEHOLD_EPOCH; do sleep 0.1; done"

[[job]]                 # fails
name = "report"
cron = "$(at $second)"
command = "echo no rows for today >&2; exit 3"

[[job]]                 # hangs
name = "sync"
cron = "$(at $second)"
command = "echo asking the remote; sleep 600"
timeout = "2s"

[[job]]                 # takes long, and finishes when it is asked to
name = "backup"
cron = "$(at $second)"
command = "trap 'echo finished early; exit 0' TERM; echo \$\$ >backup.started; while :; do sleep 0.1; done"
END
}

# A machine that is too slow to be there in time gets another evening: then nothing has happened yet.
evening=8
while :; do
    plan $evening
    machine box-1 schedule
    began() { test -e export.1 || [ "$(date +%s)" -gt $((first + 5)) ]; }
    until_so "the export begins" began
    if test -e export.1; then
        machine box-2 schedule
        # The power fails: the scheduler, what keeps the job's lease, and the job itself.
        # Some of what was just seen may have ended by itself.
        kill -9 $(tree "$(cat box-1.pid)") 2>/dev/null || :
        rm box-1.pid
        [ "$(date +%s)" -ge "$second" ] || break
    fi
    power_off
    rm -f export.* backup.started box-?.*
    evening=$((evening * 2))
done

# box-2 finds out, runs the slot again, and somebody is told.
until_so "the export is run again" test -e export.2
until_so "somebody is told of the loss" are_told 1
touch go.2
until_so "the export has ended" has_ended export
until_so "somebody is told that it is back" are_told 2

# The other jobs, and an operator who needs box-2.
until_so "the backup runs" test -e backup.started
leasehold revoke backup --drain --within 2m --by ann --why 'box-2 gets a new disk' 2>operator.txt
until_so "the report has ended" has_ended report
until_so "the sync was stopped" has_ended sync
until_so "somebody is told of both" are_told 4

# The worker: an item that is done, one that never can be, and one that the operator takes away.
for item in good bad slow; do
    leasehold queue add mail --key $item --attempts 1 --text $item >/dev/null
done
machine box-3 work mail -- sh -c 'case $(cat) in
    good) echo sent ;;
    bad) echo no such address; exit 7 ;;
    slow) trap "echo given up; exit 9" TERM; echo $$ >slow.started; while :; do sleep 0.1; done ;;
esac'
until_so "the slow item is begun" test -e slow.started
leasehold queue cancel mail k.slow --drain --within 2m --by ann --why 'nobody needs it any more' 2>>operator.txt
until_so "somebody is told of the dead letter" are_told 5

# The morning.
for box in box-2 box-3; do
    kill -TERM "$(cat $box.pid)"
    wait "$(cat $box.pid)" && echo "$box: ended with 0" >>operator.txt
    rm $box.pid
done
for job in export report sync backup; do leasehold runs $job --json; done >runs.json
for job in export report sync backup; do echo "$job:" && leasehold logs $job; done >logs.txt 2>&1
for item in good bad slow; do echo "k.$item:" && leasehold logs mail k.$item; done >>logs.txt 2>&1
for item in good bad slow; do leasehold queue show mail k.$item --json; done >items.json
leasehold stats --prometheus >numbers.txt
leasehold check --missed >missed.txt 2>&1
