#!/usr/bin/env bash
# Provides a Consul program at OUT: $CONSUL_BIN, else a consul >= 1.15 on PATH, else the pinned one, built from source.
set -euo pipefail
out=$1
here=$(cd "$(dirname "$0")/../integration/tools" && pwd)

# at_least_1_15 PROGRAM: its version is 1.15 or later.
at_least_1_15() {
	local version major minor
	version=$("$1" version 2>/dev/null | sed -nE '1s/^Consul v([0-9]+)\.([0-9]+).*/\1 \2/p')
	read -r major minor <<<"$version" || true
	[[ -n ${minor:-} ]] && ((major > 1 || (major == 1 && minor >= 15)))
}

if [[ -n ${CONSUL_BIN:-} ]]; then
	at_least_1_15 "$CONSUL_BIN" || { echo "consul.sh: CONSUL_BIN=$CONSUL_BIN is not a Consul >= 1.15" >&2; exit 1; }
	ln -sfn "$(realpath "$CONSUL_BIN")" "$out"
	echo "using $CONSUL_BIN as $out"
elif found=$(command -v consul) && at_least_1_15 "$found"; then
	ln -sfn "$(realpath "$found")" "$out"
	echo "using $found as $out"
else
	version=$(sed -nE 's/^.*github.com\/hashicorp\/consul (v[0-9.]+).*$/\1/p' "$here/consul/go.mod")
	echo "no Consul >= 1.15 here: building Consul $version from source, once; 2 to 6 minutes on two cores" >&2
	cd "$here/consul"
	if ! CGO_ENABLED=0 go build -mod=readonly -trimpath -ldflags '-s -w' -o consul.built github.com/hashicorp/consul; then
		echo "consul.sh: could not build Consul $version; is the Go module proxy reachable? Or set CONSUL_BIN to a Consul >= 1.15" >&2
		exit 1
	fi
	cd - >/dev/null
	mkdir -p "$(dirname "$out")"
	mv "$here/consul/consul.built" "$out"
	echo "built $out" >&2
fi
touch -h "$out"
