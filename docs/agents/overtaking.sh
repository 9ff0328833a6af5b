#!/bin/sh
# A job comes every 45 minutes, and one run takes longer than that.
set -eu
export LEASEHOLD_STORE="dir:$PWD/leases"

# Instead of `--slot '@every 45m'` the slots are named here, so that nobody has to wait for them.
review() {
    slot=$1; shift
    leasehold run review --slot-at "$slot" --progress-timeout 30m -- ./agent.sh "$@"
}

# The run of 09:00 is slow. Each of its tool calls counts as progress; without any for 30 minutes it would lose the lease.
review 2026-01-05T09:00:00Z 'touch started' 'until [ -e end ]; do sleep 0.1; done' 'echo 09:00 >>done' & slow=$!
until [ -e started ]; do sleep 0.1; done

# 09:45 comes meanwhile. It is skipped: exit code 0, counted as a skip, no alert.
review 2026-01-05T09:45:00Z 'echo 09:45 >>done'

touch end
wait $slow
review 2026-01-05T10:30:00Z 'echo 10:30 >>done'

leasehold stats review
test "$(cat done)" = '09:00
10:30'
