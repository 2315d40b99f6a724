#!/bin/sh
# Make the roles of QTS and of its replica, and the database, on a new primary. Run as the superuser of PostgreSQL:
#
#   postgres-roles.sh POSTGRES_PASSWORD_FILE REPLICA_PASSWORD_FILE [psql option...]
#
# The synchronous replica does not exist yet: this session does not wait for it.
set -eu
if [ $# -lt 2 ]; then
    echo "usage: postgres-roles.sh POSTGRES_PASSWORD_FILE REPLICA_PASSWORD_FILE [psql option...]" >&2
    exit 2
fi
own=$(cat "$1")
replica=$(cat "$2")
shift 2
# By standard input: an argument can be read by every user of the machine.
psql --no-psqlrc --quiet --set ON_ERROR_STOP=1 "$@" << SQL
SET synchronous_commit = local;
SET log_statement = 'none';
SET log_min_error_statement = 'panic';
SELECT format('CREATE ROLE %I LOGIN', name) FROM unnest(ARRAY['qts', 'qts_replica']) AS name
 WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name) \gexec
ALTER ROLE qts PASSWORD '$own';
ALTER ROLE qts_replica REPLICATION PASSWORD '$replica';
SELECT 'CREATE DATABASE qts OWNER qts' WHERE NOT EXISTS (SELECT FROM pg_database WHERE datname = 'qts') \gexec
SQL
