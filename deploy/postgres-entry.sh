#!/bin/sh
# Start one PostgreSQL of compose.pair.yaml: the first time QTS_PRIMARY makes it a replica, its absence a primary.
set -eu
settings=/etc/qts secrets=/run/qts-secrets
data=${PGDATA:-/var/lib/postgresql/18/docker}
own=/var/lib/postgresql/secrets
# The server runs as postgres and refuses a key that others can read.
install -d -o postgres -g postgres -m 700 "$own"
for file in "$QTS_NODE.pem" "$QTS_NODE.key" ca.pem replica.pgpass postgres.password replica.password; do
    install -o postgres -g postgres -m 600 "$secrets/$file" "$own/$file"
done
as_postgres="gosu postgres"
if [ ! -s "$data/PG_VERSION" ]; then
    install -d -o postgres -g postgres -m 700 "$data"
    if [ -n "${QTS_PRIMARY:-}" ]; then
        until pg_isready --quiet --host="$QTS_PRIMARY"; do sleep 1; done
        $as_postgres sh "$settings/postgres-replica.sh" "$data" "$QTS_NAME" "$QTS_PRIMARY" "$own/replica.pgpass" "$own/ca.pem"
    else
        $as_postgres initdb --pgdata="$data" --auth=peer --data-checksums --no-instructions
        $as_postgres pg_ctl --pgdata="$data" --wait --options="-c listen_addresses=''" start
        $as_postgres sh "$settings/postgres-roles.sh" "$own/postgres.password" "$own/replica.password"
        $as_postgres pg_ctl --pgdata="$data" --wait --mode=fast stop
    fi
fi
# shellcheck disable=SC2086
exec $as_postgres postgres -D "$data" -c config_file="$settings/postgres-pair.conf" -c hba_file="$settings/pg_hba.conf" \
    -c cluster_name="$QTS_NAME" -c ssl_cert_file="$own/$QTS_NODE.pem" -c ssl_key_file="$own/$QTS_NODE.key"
