#!/bin/sh
# Has the SSH server of this guest trust its cloud, and be known by it: for `atoll vm ssh`. Can be run again.
set -eu
umask 022
at=http://169.254.169.254
own=/etc/ssh/atoll
config=/etc/ssh/sshd_config
dropin=/etc/ssh/sshd_config.d/10-atoll.conf

say() { echo "atoll ssh: $*" >&2; }

sshd=$(command -v sshd || echo /usr/sbin/sshd)
[ -x "$sshd" ] || { say "there is no SSH server here: nothing is set up"; exit 0; }

# fetch PATH [HEADER]
if command -v curl >/dev/null; then
    token=$(curl -sf --max-time 10 -X PUT -H "X-aws-ec2-metadata-token-ttl-seconds: 300" "$at/latest/api/token") || token=
    fetch() { curl -sSf --max-time 30 ${token:+-H "X-aws-ec2-metadata-token: $token"} -H "${2:-Accept: */*}" "$at$1"; }
else
    fetch() { wget -q -T 30 -O - --header "${2:-Accept: */*}" "$at$1"; }
fi

# keep FILE: all of standard input into it, or nothing.
keep() { cat >"$1.new" && mv "$1.new" "$1"; }

trusted=$("$sshd" -T 2>/dev/null | sed -n 's/^trustedusercakeys //p') || trusted=
case ${trusted:-none} in
    none | "$own"/*) ;;
    *) say "it trusts the CAs in $trusted already, and is left alone"; exit 0 ;;
esac

mkdir -p "$own"
user_ca=$(fetch /atoll/ssh/user-ca)
principals=$(fetch /atoll/ssh/principals)

key=
for kind in ed25519 ecdsa rsa; do
    [ -n "$key" ] || [ ! -s "/etc/ssh/ssh_host_${kind}_key.pub" ] || key=/etc/ssh/ssh_host_${kind}_key
done
if [ -z "$key" ]; then
    key=/etc/ssh/ssh_host_ed25519_key
    rm -f "$key"
    ssh-keygen -q -t ed25519 -N "" -f "$key"
fi
tries=1
until certificate=$(fetch /atoll/ssh/host-certificate "X-Atoll-SSH-Host-Key: $(cut -d ' ' -f 1,2 "$key.pub")"); do
    [ "$tries" -lt 5 ] || { say "the cloud gives no certificate for $key.pub"; exit 1; }
    tries=$((tries + 1))
    sleep 10
done

echo "$user_ca" | keep "$own/user_ca.pub"
echo "$principals" | keep "$own/principals"
echo "$certificate" | keep "$own/host-cert.pub"
lines="# Set by the cloud: http://169.254.169.254/atoll/ssh/setup
TrustedUserCAKeys $own/user_ca.pub
AuthorizedPrincipalsFile $own/principals
HostCertificate $own/host-cert.pub"

[ -e "$config" ] || : >"$config"
before=$(cat "$config")
if grep -qi '^[[:space:]]*include.*/etc/ssh/sshd_config\.d/\*' "$config"; then
    mkdir -p /etc/ssh/sshd_config.d
    echo "$lines" | keep "$dropin"
elif ! grep -q "$own/" "$config"; then
    # First of all: what follows may be for some users only.
    printf '%s\n%s\n' "$lines" "$before" | keep "$config"
fi
mkdir -p /run/sshd
if ! "$sshd" -t; then
    rm -f "$dropin"
    echo "$before" | keep "$config"
    say "the SSH server does not take it; its configuration is as it was"
    exit 1
fi
if [ -d /run/systemd/system ]; then
    for unit in ssh.service sshd.service; do systemctl try-reload-or-restart "$unit" 2>/dev/null || :; done
elif [ -s /run/sshd.pid ]; then
    kill -HUP "$(cat /run/sshd.pid)" 2>/dev/null || :
fi
