#!/bin/sh
# Two laptops have the same crontab line. Each has a clone; the store and the repository are shared.
set -eu
export LEASEHOLD_STORE="dir:$PWD/leases"
git init -q --bare -b main repo.git
for laptop in ann bob; do git clone -q repo.git "$laptop"; done

# The line. Yours says '0 3 * * *'; here it is the slot of the new year, so that none comes while this runs.
brush_up() {
    cd "$1"
    leasehold run brush-up --label "$1" --slot @yearly --slot-max-age 366d --guard git:origin -- ../agent.sh \
        "git commit -q --allow-empty -m 'brushed up by $1'" \
        'leasehold push origin main'
}

# Both fire in the same minute. One runs; the other is skipped, and that is exit code 0.
(brush_up ann) & first=$!
(brush_up bob) & second=$!
wait $first
wait $second

# One fires late: the lease is free by now, but the slot was run.
(brush_up bob)

leasehold stats brush-up
test "$(git -C repo.git rev-list --count main)" = 1
