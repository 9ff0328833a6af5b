#!/bin/sh
# Two sandboxes share a repository, and nothing else but the store. One of them freezes just before a push.
set -eu
export LEASEHOLD_STORE="dir:$PWD/leases"
git init -q --bare -b main repo.git
for sandbox in box-1 box-2; do git clone -q repo.git "$sandbox"; done

# On a git server of your own: refuse every push to main that does not carry the lease.
leasehold git-hook install --repo repo.git --protect refs/heads/main=task-17

# box-1 has the task and a commit, and freezes. Its lease is taken; elsewhere it would run out by itself.
old=$(leasehold acquire task-17 --label box-1)
git -C box-1 commit -q --allow-empty -m 'by box-1'
leasehold revoke task-17 --why 'box-1 does not answer'

# box-2 gets the task. The guard shuts older holders out of the repository before the agent starts.
cd box-2
leasehold run task-17 --label box-2 --guard git:origin -- ../agent.sh \
    "git commit -q --allow-empty -m 'by box-2'" \
    'leasehold push origin main'

# box-1 thaws. Its tool calls are denied, its fenced push is refused with 13, and the server refuses a plain one.
cd ../box-1
LEASEHOLD_TOKEN=$old ../agent.sh 'touch ../it-ran' && exit 1
test ! -e ../it-ran
code=0; leasehold push origin +main --token "$old" || code=$?
test $code = 13
git push -q origin +main && exit 1

test "$(git -C ../repo.git log --format=%s main)" = 'by box-2'
