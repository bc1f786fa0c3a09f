#!/usr/bin/env bash
# uptime.sh SECONDS COMMAND... runs a command as on a machine that was started so many seconds ago, in a time namespace
# (time_namespaces(7)): CLOCK_BOOTTIME and CLOCK_MONOTONIC begin there, and so do the start times of processes in /proc.
# Whoever is not root gets a user namespace too, as the same user and without its rights.
# `go test -exec` starts each test's program with it.
set -euo pipefail
up=$1
shift

# What both clocks are ahead by. CLOCK_MONOTONIC is behind where the machine has slept: as if this one had not.
read -r now _ </proc/uptime
offset=$((up - ${now%.*}))
new=(unshare --time --boottime "$offset" --monotonic "$offset")
if "${new[@]}" true 2>/dev/null; then
	exec "${new[@]}" -- "$@"
fi
new=(unshare --user --map-current-user "${new[@]:1}")
if "${new[@]}" true 2>/dev/null; then
	exec "${new[@]}" -- "$@"
fi
echo "uptime.sh: no time namespace: $("${new[@]}" true 2>&1 | head -n 1); it needs Linux 5.6, unshare of util-linux 2.38," \
	"and root or user namespaces; \`make test UPTIMES=\` leaves out what needs one" >&2
exit 1
