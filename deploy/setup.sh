#!/usr/bin/env bash
# Makes everything `ratchet` needs inside .venv: the pinned packages, their bytecode, this project, and Kafka's jars.
# Invariant: each step leaves a stamp named by what it was made from, so a second run does nothing and a changed
# lock redoes only its own step. No address is named here: your own pip, uv and Maven configuration decides.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

VENV=.venv
STAMPS=$VENV/stamps
JAVA_PACKAGES="default-jre-headless maven"
POSTGRES_PACKAGES="postgresql"

say() { printf 'setup: %s\n' "$*"; }
die() { printf 'setup: %s\n' "$*" >&2; exit 1; }
digest() { cat "$@" | sha256sum | cut -c1-16; }
is_done() { [ "$(cat "$STAMPS/$1" 2>/dev/null)" = "$2" ]; }
mark_done() { mkdir -p "$STAMPS" && printf '%s' "$2" >"$STAMPS/$1"; }
can_install() { [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; }

install_debian() {
    say "installing Debian's $*"
    export DEBIAN_FRONTEND=noninteractive
    { apt-get -qq update && apt-get -qq install -y --no-install-recommends "$@"; } >/dev/null </dev/null
}

java_major() { java -version 2>&1 | sed -nE 's/.*version "([0-9]+).*/\1/p' | head -n 1; }
has_java() { command -v java >/dev/null && command -v mvn >/dev/null && [ "$(java_major)" -ge 17 ] 2>/dev/null; }

need_java() {
    has_java && return
    # Word splitting is meant: two package names.
    # shellcheck disable=SC2086
    can_install && install_debian $JAVA_PACKAGES && has_java && return
    die "Java 17 or later and Maven are missing; install them (Debian: apt-get install $JAVA_PACKAGES) and run again"
}

has_postgres() { command -v initdb >/dev/null || compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null; }

# For the tests alone, which start servers of their own: Debian is told not to make and start one.
need_postgres() {
    has_postgres && return
    local own=/etc/postgresql-common/createcluster.d/ratchet.conf
    can_install && mkdir -p "${own%/*}" && echo 'create_main_cluster = false' >"$own" &&
        install_debian $POSTGRES_PACKAGES && has_postgres && return
    die "PostgreSQL's server is missing; install it (Debian: apt-get install $POSTGRES_PACKAGES) and run again"
}

kafka_from() { digest deploy/kafka/pom.xml deploy/locks/kafka.txt; }

fetch_kafka() {
    local made_from
    made_from=$(kafka_from)
    is_done kafka "$made_from" && return
    rm -rf $VENV/kafka
    mvn -q -B -f deploy/kafka/pom.xml dependency:copy-dependencies -DincludeScope=runtime \
        -DoutputDirectory="$PWD/$VENV/kafka" </dev/null >$VENV/maven.log 2>&1 ||
        { tail -n 5 $VENV/maven.log >&2; die "Maven could not fetch Kafka's jars (all of it: $VENV/maven.log)"; }
    (cd $VENV/kafka && sha256sum --quiet --check ../../deploy/locks/kafka.txt) ||
        die "a Kafka jar is not the one named in deploy/locks/kafka.txt"
    mark_done kafka "$made_from"
    say "Kafka's jars are here"
}

find_python() {
    local name
    for name in ${PYTHON:-} python3.11 python3.12 python3.13 python3; do
        "$name" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null && echo "$name" && return
    done
    return 1
}

make_venv() {
    [ -x $VENV/bin/python ] && $VENV/bin/python -c '' 2>/dev/null && return
    local python
    python=$(find_python) || die "Python 3.11, 3.12 or 3.13 is missing; install it, or name it: make setup PYTHON=/path/to/python3"
    "$python" -c 'import ensurepip' 2>/dev/null || { can_install && install_debian python3-venv; } ||
        die "$python has no venv module; install it (Debian: apt-get install python3-venv) and run again"
    say "making $VENV with $("$python" --version)"
    rm -rf $VENV
    "$python" -m venv $VENV
}

make_uv() {
    local made_from
    made_from=$(digest deploy/locks/uv.txt)
    is_done uv "$made_from" && return
    # A venv of its own: `uv pip sync` would remove a uv that is not in the lock.
    rm -rf $VENV/uv && $VENV/bin/python -m venv $VENV/uv
    $VENV/uv/bin/python -m pip install -q --disable-pip-version-check --require-hashes --only-binary :all: -r deploy/locks/uv.txt
    mark_done uv "$made_from"
}

# uv does not read pip's configuration: hand over what the user told pip, unless uv was told something itself.
adopt_pip_configuration() {
    local index
    index=${PIP_INDEX_URL:-$($VENV/bin/python -m pip config get global.index-url 2>/dev/null || true)}
    if [ -n "$index" ] && [ -z "${UV_DEFAULT_INDEX:-}${UV_INDEX_URL:-}${UV_INDEX:-}" ]; then export UV_DEFAULT_INDEX=$index; fi
    if [ -n "${PIP_CERT:-}" ] && [ -z "${SSL_CERT_FILE:-}" ]; then export SSL_CERT_FILE=$PIP_CERT; fi
}

run_uv() { VIRTUAL_ENV=$PWD/$VENV $VENV/uv/bin/uv "$@"; }

install_packages() {
    local made_from
    made_from=$(digest deploy/locks/cpu.txt)
    is_done packages "$made_from" && return
    say "installing the $(grep -c '==' deploy/locks/cpu.txt) pinned packages (about 6.5 GB)"
    run_uv pip sync -q --require-hashes deploy/locks/cpu.txt
    rm -f $STAMPS/project
    mark_done packages "$made_from"
}

install_project() {
    local made_from
    made_from=$(digest pyproject.toml)-$PWD
    is_done project "$made_from" && return
    run_uv pip install -q --no-deps --no-build-isolation --config-setting editable_mode=compat -e .
    mark_done project "$made_from"
}

compile_bytecode() {
    local made_from
    made_from=$(digest deploy/locks/cpu.txt)
    is_done bytecode "$made_from" && return
    say "compiling bytecode"
    # Some packages ship files for other Pythons; what does not compile is never imported, so its failure is no fault.
    env -u PYTHONDONTWRITEBYTECODE $VENV/bin/python -m compileall -qq -j 0 $VENV/lib || true
    mark_done bytecode "$made_from"
}

# Every stamp but the time itself: equal before and after when there was nothing to do.
stamped() { cat $STAMPS/{uv,packages,project,bytecode,kafka} 2>/dev/null || true; }

main() {
    local began=$SECONDS before
    make_venv
    before=$(stamped)
    # What is missing is said now, not in the background and not after 6.5 GB.
    is_done kafka "$(kafka_from)" || need_java
    fetch_kafka &
    local kafka=$!
    make_uv
    adopt_pip_configuration
    install_packages
    install_project
    compile_bytecode
    wait $kafka
    [ "$(stamped)" = "$before" ] || mark_done setup_s "$((SECONDS - began))"
    say "ready in $((SECONDS - began)) s"
}

case ${1:-} in
    "") main ;;
    java) need_java ;;
    postgres) need_postgres ;;
    lock)
        run_uv pip compile -q pyproject.toml --extra cpu --extra dev --override deploy/locks/overrides.txt \
            --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate --no-header -o deploy/locks/cpu.txt ;;
    *) die "unknown step '$1'; use nothing, java, postgres or lock" ;;
esac
