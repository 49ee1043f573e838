#!/usr/bin/env bash
# Makes .venv-NAME of requirements-NAME.lock, for a peer that the bench runs in an environment of its own: pypaimon, flink, pathway.
# Where that cannot be done, the bench goes on without it and its rows say why, which stands in .venv-NAME/failed. scripts/setup.sh
# is to be run before.
set -euo pipefail
cd "$(dirname "$0")/.."
NAME=${1:?usage: scripts/setup_peer.sh NAME}
VENV=.venv-$NAME
LOCK=requirements-$NAME.lock
STAMP=$VENV/.ready

install() { # 2>&1: what is told last is why it failed
    .venv/bin/python -m venv "$VENV" && "$VENV/bin/python" -m pip install -qq --disable-pip-version-check --no-input \
        --require-hashes --no-deps --only-binary :all: -r "$LOCK" </dev/null
}

main() {
    local sum told
    sum=$(cat "$LOCK" .venv/pyvenv.cfg | sha256sum)
    [ "$(cat "$STAMP" 2>/dev/null)" != "$sum" ] || return 0
    echo "setup: making $VENV with $NAME, for the bench alone"
    rm -rf "$VENV"
    if told=$(install 2>&1); then
        printf '%s\n' "$sum" >"$STAMP"
    else
        rm -rf "$VENV" && mkdir "$VENV"
        tail -n 1 <<<"$told" >"$VENV/failed"
        echo "setup: $NAME could not be installed: $(cat "$VENV/failed")"
    fi
}

main
