#!/bin/bash
# The first process of a user-mode Linux kernel: an NFSv4.2 server, two independent mounts of its one export, then $LHTEST.
# The host's files are there, read-only. The export is /mnt/exp, its mounts are /mnt/a and /mnt/b.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
for folder in /run /mnt /var/lib/nfs; do mount -t tmpfs tmpfs "$folder"; done
mkdir -p /run/kernel/lib && ln -s /usr/lib/uml/modules /run/kernel/lib/modules
mkdir -p /var/lib/nfs/{rpc_pipefs,sm,sm.bak,v4recovery} && touch /var/lib/nfs/{etab,rmtab,xtab,state}
ip link set lo up
for module in nfsd nfsv4; do modprobe -d /run/kernel "$module" || echo "cannot load $module"; done
mount -t nfsd nfsd /proc/fs/nfsd
mkdir -p /mnt/{exp,a,b,tmp} && mount -t tmpfs tmpfs /mnt/exp
exportfs -o rw,sync,no_root_squash,fsid=0,insecure,no_subtree_check '*:/mnt/exp'
rpc.mountd -N 3 -V 4 >/dev/null 2>&1
# Short grace and lease periods: the server has just been born, there is nothing to reclaim.
echo 10 >/proc/fs/nfsd/nfsv4leasetime
echo 10 >/proc/fs/nfsd/nfsv4gracetime
rpc.nfsd -N 3 -V 4 2 2>/dev/null || rpc.nfsd 2
for name in a b; do
    mount -t nfs4 -o nosharecache,vers=4.2 127.0.0.1:/ "/mnt/$name" || echo "cannot mount /mnt/$name"
done
bash "$LHTEST"
echo "NFS ENDED WITH $?"
sync
echo o >/proc/sysrq-trigger
sleep 5
