# What .ci/run and .ci/release-check share: the servers, the system's packages, stages and environments.

answers() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }
if [ -z "${OJS_TEST_POSTGRES_URL:-}" ] && answers 5432; then
  export OJS_TEST_POSTGRES_URL=postgresql://postgres@127.0.0.1:5432/postgres
fi
if [ -z "${OJS_TEST_MARIADB_URL:-}" ] && answers 3306; then
  export OJS_TEST_MARIADB_URL=mysql://root@127.0.0.1:3306/test
  # Thousands of commits need not wait for the disk, as nothing here is kept.
  mariadb -h 127.0.0.1 -u root -e 'SET GLOBAL innodb_flush_log_at_trx_commit = 0' || true
fi
echo "PostgreSQL: ${OJS_TEST_POSTGRES_URL:-from the wheel}"
echo "MariaDB: ${OJS_TEST_MARIADB_URL:-none}"

STAGES=$(mktemp)
stage() { python3 -m tests.stages run "$STAGES" "$@"; } # NAME COMMAND ...

python() { # VERSION ...: the first of these Pythons that really runs, be it on PATH or among pyenv's
  local version candidate
  for version in "$@"; do
    for candidate in "python$version" "$HOME"/.pyenv/versions/"$version".*/bin/python; do
      "$candidate" -c '' 2>/dev/null && echo "$candidate" && return
    done
  done
  command -v python3
}
OLDEST=$(python 3.11)
NEWEST=$(python 3.14 3.13 3.12)

system_packages() { # what pip does not have
  local missing=()
  command -v ip || missing+=(iproute2)
  command -v pgbouncer || missing+=(pgbouncer)
  command -v node || missing+=(nodejs)
  command -v chromium || command -v google-chrome || missing+=(chromium)
  [ -z "${OJS_TEST_MARIADB_URL:-}" ] || pkg-config --exists libmariadb || missing+=(libmariadb-dev pkg-config)
  [ ${#missing[@]} -eq 0 ] || { apt-get update -qq && apt-get install -y -qq "${missing[@]}" >/dev/null; }
}

environment() { # FOLDER PYTHON REQUIREMENT ...: a virtual environment, with the versions of constraints.txt
  "$2" -m venv "$1" && .venv/bin/uv pip install --quiet --python "$1/bin/python" --constraint constraints.txt "${@:3}"
}
export -f environment system_packages
