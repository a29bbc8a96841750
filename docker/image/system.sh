#!/bin/sh
# The user of an image, its writable folder, and packages of the system.
#
#   system.sh PACKAGE...
#
# What it writes is not newer than SOURCE_DATE_EPOCH, and holds neither caches nor keys.
set -eu
started=$(date +%s)
if ! grep -q ^trainyard: /etc/passwd; then
    echo 'trainyard:x:10001:10001:Trainyard:/work:/bin/sh' >> /etc/passwd
    echo 'trainyard:x:10001:' >> /etc/group
    mkdir -m 0700 /work
    chown 10001:10001 /work
fi
if [ $# -gt 0 ]; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get -qq update
    apt-get -qq install -y --no-install-recommends "$@" > /dev/null
fi
rm -rf /var/lib/apt/lists/* /var/cache/* /var/log/* /etc/ssh/ssh_host_* /etc/*- "$0"
# The builder mounts its own /etc/hosts and /etc/resolv.conf.
find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path '/etc/host*' \
    -o -path /etc/resolv.conf \) -prune \
    -o -newermt "@$((started - 1))" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
