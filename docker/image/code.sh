#!/bin/sh
# This project in /opt/trainyard, from /src, and files of docker/image/ in its folder docker/:
# `code.sh FILE...`. No file is newer than SOURCE_DATE_EPOCH.
set -eu
python3 -m pip install --quiet --no-cache-dir --no-deps --require-hashes \
    --target /tmp/build -r /src/docker/locks/build.txt
PYTHONPATH=/tmp/build python3 -m pip wheel \
    --quiet --no-cache-dir --no-deps --no-build-isolation -w /tmp/wheels /src
python3 -m pip --python /opt/venv/bin/python install \
    --quiet --no-cache-dir --no-compile --no-deps --no-index --target /opt/trainyard \
    /tmp/wheels/*.whl
mkdir -p /opt/trainyard/docker
for file in "$@"; do cp "/src/docker/image/$file" /opt/trainyard/docker/; done
# pip writes the path of the wheel and its time into this file.
rm -f /opt/trainyard/*.dist-info/direct_url.json
if [ -d /src/dags ]; then cp -r /src/dags /opt/trainyard/; fi
# Whatever the modes in the clone are.
chmod -R a+rX /opt/trainyard
# Bytecode without times, as the next build would make it.
/opt/venv/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/trainyard
find /opt -newermt "@$SOURCE_DATE_EPOCH" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
