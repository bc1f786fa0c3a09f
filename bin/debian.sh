#!/usr/bin/env bash
# debian.sh PACKAGE PROGRAM... makes sure that the programs are on PATH: where one is missing, and this is root on Debian, it
# installs the package.
set -euo pipefail
package=$1
programs=("${@:2}")

# missing: the programs that are not on PATH.
missing() {
	local program
	for program in "${programs[@]}"; do
		command -v "$program" >/dev/null || echo "$program"
	done
}

fail() {
	echo "debian.sh: no $(missing | paste -sd ' ') on PATH, and $1; install Debian's package $package and try again" >&2
	exit 1
}

[[ -z $(missing) ]] && exit 0
command -v apt-get >/dev/null || fail "there is no apt-get here to install it with"
((EUID == 0)) || fail "only root may install it"
echo "no ${programs[0]} here: installing Debian's package $package" >&2
export DEBIAN_FRONTEND=noninteractive
install=(apt-get install -y -qq --no-install-recommends "$package")
if ! "${install[@]}" >&2; then
	{ apt-get update -qq && "${install[@]}"; } >&2 || fail "apt-get could not install it"
fi
[[ -z $(missing) ]] || fail "the package has not brought it"
