#!/usr/bin/env bash
# uptime.sh SECONDS COMMAND...: runs a command on a machine that seems to have been up for so many seconds. It needs Linux 5.6 with time
# namespaces, and unshare of util-linux 2.36; an ordinary user also needs user namespaces.
set -euo pipefail
seconds=$1
shift
own=()
[ "$(id -u)" = 0 ] || own=(--user --map-current-user)
up=$(cut -d. -f1 /proc/uptime)
if ! unshare "${own[@]}" --time --boottime 0 true; then
  echo "uptime.sh: no time namespace; this needs Linux 5.6 or newer, util-linux 2.36 or newer, and, without root, user namespaces" >&2
  exit 1
fi
exec unshare "${own[@]}" --time --boottime $((seconds - up)) "$@"
