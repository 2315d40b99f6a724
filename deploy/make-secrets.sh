#!/bin/sh
# Generate the passwords and certificates of a pair: two PostgreSQL servers and three NATS nodes.
#
#   deploy/make-secrets.sh DIRECTORY HOST...      HOST: each name under which a server is reached
#   deploy/make-secrets.sh secrets postgres-a postgres-b nats-1 nats-2 nats-3
#
# DIRECTORY must not exist; it is made with mode 0700. Copy to each machine only its own HOST.pem and HOST.key,
# ca.pem and the passwords that it needs; keep ca.key, which signs new nodes, off all of them.
set -eu
umask 077
if [ $# -lt 2 ]; then
    echo "usage: make-secrets.sh DIRECTORY HOST..." >&2
    exit 2
fi
directory=$1
shift
if [ -e "$directory" ]; then
    echo "make-secrets.sh: $directory exists; name a new directory" >&2
    exit 2
fi
for host in "$@"; do
    case $host in
        ca | *[!A-Za-z0-9.-]*)
            echo "make-secrets.sh: '$host' is not a host name; allowed: letters, digits, dots and hyphens" >&2
            exit 2
            ;;
    esac
done
mkdir "$directory"
cd "$directory"

# Letters and digits only: they become part of URLs.
for name in postgres replica redis nats; do
    openssl rand -hex 24 > "$name.password"
done
printf '*:*:*:qts_replica:%s\n' "$(cat replica.password)" > replica.pgpass
printf 'authorization { user: "qts", password: "%s" }\n' "$(cat nats.password)" > nats-auth.conf
{
    echo "POSTGRES_PASSWORD=$(cat postgres.password)"
    echo "REDIS_PASSWORD=$(cat redis.password)"
    echo "NATS_PASSWORD=$(cat nats.password)"
} > pair.env

curve="ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
# With all the extensions that a strict client, such as Python from 3.13 on, requires.
# shellcheck disable=SC2086
openssl req -x509 -newkey $curve -days 3650 -subj "/CN=QTS pair" -keyout ca.key -out ca.pem \
    -addext keyUsage=critical,keyCertSign,cRLSign 2> /dev/null
for host in "$@"; do
    case $host in
        *[!0-9.]*) name="DNS:$host" ;;
        *) name="IP:$host" ;;
    esac
    # shellcheck disable=SC2086
    openssl req -newkey $curve -subj "/CN=$host" -keyout "$host.key" -out "$host.csr" 2> /dev/null
    # A NATS node is a server to clients and a client of the other nodes.
    {
        printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth,clientAuth\n' "$name"
        printf 'basicConstraints=CA:FALSE\nkeyUsage=critical,digitalSignature\n'
        printf 'subjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n'
    } > extensions
    openssl x509 -req -in "$host.csr" -CA ca.pem -CAkey ca.key -CAcreateserial -days 825 \
        -extfile extensions -out "$host.pem" 2> /dev/null
    rm "$host.csr" extensions
done
rm -f ca.srl
echo "$directory: passwords, ca.pem, and a certificate for $*"
