#!/bin/bash
# Makes the keys and signatures of this directory with OpenSSH. Run it again only to add to them: tests compare with what
# is here, so that they need no ssh-keygen. The keys protect nothing.
set -eu
cd "$(dirname "$0")"
chmod 600 ./key_* ./ca 2> /dev/null || true # git does not keep that, and ssh-keygen insists on it
for type in ed25519 ecdsa rsa; do
  [ -e key_$type ] || ssh-keygen -q -t $type -N '' -C "$type@example.com" -f key_$type
done
[ -e key_other ] || ssh-keygen -q -t ed25519 -N '' -C other@example.com -f key_other
[ -e key_locked ] || ssh-keygen -q -t ed25519 -a 1 -N secret -C locked@example.com -f key_locked
[ -e key_locked_pem ] || ssh-keygen -q -t rsa -b 2048 -m PEM -N secret -C locked@example.com -f key_locked_pem
[ -e key_short ] || ssh-keygen -q -t rsa -b 1024 -N '' -C short@example.com -f key_short
[ -e ca ] || ssh-keygen -q -t ed25519 -N '' -C ca@example.com -f ca
[ -e key_cert-cert.pub ] || { ssh-keygen -q -t ed25519 -N '' -C cert@example.com -f key_cert; ssh-keygen -q -s ca -I cert -n cert key_cert.pub; }
printf %s '{"version":1,"id":"web","launchables":[{"name":"server","artifact":{"kind":"exec","path":"/opt/web"}}]}' > manifest.json
sign() { # KEY NAMESPACE OUT
  ssh-keygen -q -Y sign -f "$1" -n "$2" < manifest.json > "$3" 2> /dev/null
}
for key in ed25519 ecdsa rsa short; do sign key_$key rcfarm-manifest $key.sig; done
sign key_ed25519 file namespace.sig
sign key_cert-cert.pub rcfarm-manifest cert.sig
