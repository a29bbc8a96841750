#!/bin/sh
# An environment in /opt/venv with what a lock file lists: `packages.sh LOCK [LOCK_FOR_GPUS]`. Two
# builds give the same files: none is newer than SOURCE_DATE_EPOCH.
set -eu
python3 -m venv --without-pip /opt/venv
install() {
    python3 -m pip --python /opt/venv/bin/python install \
        --quiet --no-cache-dir --no-compile --no-deps --require-hashes -r "$1"
}
if [ $# = 1 ]; then
    install "$1"
else
    # Both TensorFlows write one folder.
    awk '/^[^ ]/ { skipped = /^tensorflow-cpu==/ } !skipped' "$1" > /tmp/without-cpu.txt
    install /tmp/without-cpu.txt
    install "$2"
fi
site=$(/opt/venv/bin/python -c 'import site; print(site.getsitepackages()[0])')
echo /opt/trainyard > "$site/trainyard.pth"
# Headers for compiling operations of one's own: 290 MB that nothing reads when a model runs.
rm -rf "$site/tensorflow/include"
# TensorFlow finds libraries of CUDA here (LD_LIBRARY_PATH), wherever its packages keep them.
mkdir /opt/venv/lib/cuda
find "$site" -path '*/nvidia/*/lib/*.so*' -exec ln -s -t /opt/venv/lib/cuda {} +
# Bytecode without times, as the next build would make it. Some packages ship files of other
# versions of Python, which do not compile.
/opt/venv/bin/python -m compileall -q -j 0 --invalidation-mode unchecked-hash /opt/venv || true
find /opt -newermt "@$SOURCE_DATE_EPOCH" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
