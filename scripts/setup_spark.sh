#!/usr/bin/env bash
# Makes .venv-spark/VERSION for each version of Spark that is given (4.0, 4.1, 4.2; without any, all): an environment with that
# pyspark, of requirements-spark.lock, and all else as in .venv. Quick when nothing changed. scripts/setup.sh is to be run before.
set -euo pipefail
cd "$(dirname "$0")/.."
LOCK=requirements-spark.lock

make_environment() { # version, its line of the lock
    local venv=.venv-spark/$1 packages
    [ "$(cat "$venv/.ready" 2>/dev/null)" != "$2 $PWD" ] || return 0
    echo "setup: making $venv with ${2%% *} (half a gigabyte, once)"
    rm -rf "$venv"
    .venv/bin/python -m venv --without-pip "$venv"
    packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    # what it lacks is found in .venv, with what that one has installed to be edited
    printf 'import site; site.addsitedir(%s)\n' "'$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')'" >"$packages/others.pth"
    printf '%s\n' "$2" >"$venv/lock"
    .venv/bin/python -m pip --python "$venv/bin/python" install -qq --disable-pip-version-check --no-input --no-cache-dir \
        --ignore-installed --require-hashes --no-deps --no-build-isolation -r "$venv/lock" </dev/null
    printf '%s %s' "$2" "$PWD" >"$venv/.ready"
}

main() {
    local line version
    while read -r line; do
        version=$(grep -oE '^pyspark==[0-9]+\.[0-9]+' <<<"$line")
        version=${version#pyspark==}
        if [ $# = 0 ] || [[ " $* " = *" $version "* ]]; then make_environment "$version" "$line"; fi
    done <"$LOCK"
}

main "$@"
