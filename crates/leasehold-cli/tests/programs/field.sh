#!/bin/sh
# One run of the field test's job, in a sandbox's clone: adds a line for its slot, and pushes as it is told.
# SLOT SANDBOX MARKS PUSH...
slot=$1 me=$2 marks=$3
shift 3
git fetch -q origin && git reset -q --hard origin/main || exit 1
echo "$slot by $me" >>log
git commit -q -a -m "$slot" || exit 1
: >"$marks/at.$me"
until [ -e "$marks/go.$me" ]; do sleep 0.02; done
"$@" origin main 2>"$marks/said.$me" && exit
case $? in 13) echo "$slot by $me" >>"$marks/refused"; exit 13 ;; esac
# Others were faster.
git fetch -q origin
if git rebase -q origin/main >/dev/null 2>&1; then
    "$@" origin main
else
    git rebase --abort
    echo "$slot by $me" >>"$marks/conflicts"
    exit 3
fi
