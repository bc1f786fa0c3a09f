#!/bin/sh
# Packs a built program as an artifact: PROGRAM becomes bin/launch in the gzip-compressed tar archive OUT.
# The same program gives the same archive, byte for byte.
set -eu
program=$1 out=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$work/bin"
install -m 0755 "$program" "$work/bin/launch"
tar -C "$work" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cf - bin | gzip -n >"$out.tmp"
mv "$out.tmp" "$out"
