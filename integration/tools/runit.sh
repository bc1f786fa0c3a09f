#!/usr/bin/env bash
# Makes sure that runit's programs are on PATH: where they are missing, and this is root on Debian, installs its package.
set -euo pipefail

# missing: the programs of runit that are not on PATH.
missing() {
	local program
	for program in runsvdir runsv sv; do
		command -v "$program" >/dev/null || echo "$program"
	done
}

fail() {
	echo "runit.sh: no $(missing | paste -sd ' ') on PATH, and $1; install Debian's package runit and try again" >&2
	exit 1
}

[[ -z $(missing) ]] && exit 0
command -v apt-get >/dev/null || fail "there is no apt-get here to install it with"
((EUID == 0)) || fail "only root may install it"
echo "no runit here: installing Debian's package" >&2
export DEBIAN_FRONTEND=noninteractive
install=(apt-get install -y -qq --no-install-recommends runit) # without runit-run, which would take over services
if ! "${install[@]}" >&2; then
	{ apt-get update -qq && "${install[@]}"; } >&2 || fail "apt-get could not install it"
fi
[[ -z $(missing) ]] || fail "the package has not brought it"
