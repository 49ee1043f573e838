#!/usr/bin/env bash
# Writes the lock files anew from pyproject.toml. Needs uv; only who changes dependencies runs it.
set -euo pipefail
cd "$(dirname "$0")/.."
UV=${UV:-uv}
options=(--universal --python-version 3.11 --generate-hashes --no-header --no-annotate --no-emit-index-url --no-config --quiet)
"$UV" pip compile "${options[@]}" "$@" --all-extras pyproject.toml --output-file requirements.lock >/dev/null
# what `make demo` needs, of the same versions
"$UV" pip compile "${options[@]}" --extra demo --constraint requirements.lock pyproject.toml --output-file requirements-demo.lock >/dev/null
printf 'setuptools\nwheel\n' | "$UV" pip compile "${options[@]}" --constraint <(grep -oE '^[a-z0-9-]+==[^ ]+' requirements.lock) - \
    --output-file requirements-build.lock >/dev/null
# pypaimon pins an old pyarrow, so the bench runs it in an environment of its own
printf 'pypaimon>=2.1\n' | "$UV" pip compile "${options[@]}" "$@" - --output-file requirements-pypaimon.lock >/dev/null
# Flink's jars with what drives Java, and pathway, which pins many packages
printf 'apache-flink-libraries>=2.3\npy4j>=0.10.9\n' | "$UV" pip compile "${options[@]}" "$@" - --output-file requirements-flink.lock >/dev/null
printf 'pathway>=0.33\npyarrow\n' | "$UV" pip compile "${options[@]}" "$@" - --output-file requirements-pathway.lock >/dev/null
