#!/bin/bash
# Makes machines in namespaces: each has a name, a network with one address, and directories of its own.
# Usage, in new namespaces of users (if not root), mounts, networks and processes:
#   machines.sh DIR NAME=ADDRESS...
# DIR/NAME.pid then has the pid of a process of the machine NAME, and DIR/ADDRESS is a link to that file. In the end the
# script is a shell on the first machine, which runs its input.
set -eu
export DIR=$1
shift
here=$(cd "$(dirname "$0")" && pwd)
mount -t proc proc /proc
mount -t tmpfs tmpfs /run
mkdir /run/netns
ip link add br0 type bridge
ip link set br0 up
number=0
for machine; do
  name=${machine%%=*} address=${machine#*=} number=$((number + 1))
  ip netns add "$name"
  ip link add "v$number" type veth peer name eth0 netns "$name"
  ip link set "v$number" master br0 up
  ip -n "$name" addr add "$address/24" dev eth0
  ip -n "$name" link set eth0 up
  ip -n "$name" link set lo up
  nsenter --net="/run/netns/$name" unshare -m -u "$here/machine.sh" "$name" &
  echo $! > "$DIR/$name.pid"
  ln -s "$name.pid" "$DIR/$address"
done
for machine; do
  until [ -e "$DIR/${machine%%=*}/ready" ]; do sleep 0.05; done
done
exec ssh "root@${1#*=}" exec bash -euo pipefail
