#!/bin/sh
# Make this machine the replica of a primary. Run as the user of PostgreSQL, while its server is stopped:
#
#   postgres-replica.sh DATA NAME PRIMARY PGPASS CA [PORT]
#   postgres-replica.sh /var/lib/postgresql/18/main qts_b postgres-a /etc/qts/replica.pgpass /etc/qts/ca.pem
#
# NAME is qts_a or qts_b, as in postgres-pair.conf. DATA must be empty: a former primary that comes back is copied
# again, because what it had committed alone would make it differ. Then start the server as usual.
set -eu
if [ $# -lt 5 ]; then
    echo "usage: postgres-replica.sh DATA NAME PRIMARY PGPASS CA [PORT]" >&2
    exit 2
fi
data=$1 name=$2 primary=$3 pgpass=$4 ca=$5 port=${6:-5432}
case $name in
    qts_a | qts_b) ;;
    *)
        echo "postgres-replica.sh: NAME is '$name'; expected qts_a or qts_b" >&2
        exit 2
        ;;
esac
if [ -d "$data" ] && [ -n "$(ls -A "$data")" ]; then
    echo "postgres-replica.sh: $data is not empty; move the data of the former server away" >&2
    exit 2
fi
to="host=$primary port=$port user=qts_replica passfile=$pgpass application_name=$name"
to="$to sslmode=verify-full sslrootcert=$ca"
# One slot a name: the primary keeps the WAL that its replica lacks. It is there already after a second try.
pg_basebackup --dbname="$to" --pgdata="$data" --write-recovery-conf --wal-method=stream \
    --checkpoint=fast --no-password --create-slot --slot="$name" 2> /dev/null ||
    pg_basebackup --dbname="$to" --pgdata="$data" --write-recovery-conf --wal-method=stream \
        --checkpoint=fast --no-password --slot="$name"
