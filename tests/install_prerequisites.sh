#!/bin/sh
# Makes sure that the tests find Node.js with npm, Chromium, curl, nginx, haproxy, Caddy, Redis, flatc and binutils. On Debian as root it installs what is missing; otherwise it
# says what to install. The tests that need it are then skipped loudly, or, with CI=true, this script fails.
set -eu

missing=""
command -v node >/dev/null || missing="$missing nodejs"
command -v npm >/dev/null || missing="$missing npm"
command -v "${CHROMIUM:-chromium}" >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null ||
    missing="$missing chromium"
command -v curl >/dev/null || missing="$missing curl"
PATH="$PATH:/usr/sbin:/usr/local/sbin"
for proxy in nginx haproxy caddy; do
    command -v "$proxy" >/dev/null || missing="$missing $proxy"
done
command -v redis-server >/dev/null || missing="$missing redis-server"
command -v flatc >/dev/null || missing="$missing flatbuffers-compiler libflatbuffers-dev"
command -v objcopy >/dev/null || missing="$missing binutils"
[ -n "$missing" ] || exit 0

if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "installing for the tests:$missing"
    export DEBIAN_FRONTEND=noninteractive
    export RUNLEVEL=1 # so that no service is started
    # shellcheck disable=SC2086 # one word a package
    if apt-get update -qq && apt-get install -y -qq --no-install-recommends $missing >/dev/null; then
        exit 0
    fi
fi

cat >&2 <<HINT
****************************************************************************************************
  Some tests will not run, for these Debian packages are missing:$missing
  Install them with:   sudo apt-get update && sudo apt-get install$missing
****************************************************************************************************
HINT
[ "${CI:-}" != true ] || exit 1
