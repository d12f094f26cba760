//! The database schema and its migrations.
//!
//! Each migration runs once, in the transaction that also stores the migration's number. After a release, a migration
//! is never changed. Each later change of the schema is a new migration.

use rusqlite::{Connection, TransactionBehavior};

use super::error::Cause;

/// The migrations, in order. The number of a migration is its position, counted from 1.
const MIGRATIONS: &[&str] = &[LEDGER, LEASES];

/// The tables of the ledger.
///
/// Times are milliseconds since 1970 in UTC. `usage.input` excludes tokens read from or written to the cache, in every
/// API. `usage.key` is the budget key: a provider template or a host.
///
/// `sums` contains the numbers of `usage`, summed up for each quarter of an hour, so that budgets and reports do not
/// read every response. A trigger updates `sums` for each new row of `usage`. The offsets of all time zones are
/// multiples of a quarter of an hour, so each quarter of an hour lies within one local day.
const LEDGER: &str = "
CREATE TABLE launches (
    id INTEGER PRIMARY KEY,
    slug TEXT NOT NULL,
    run TEXT NOT NULL,
    agent TEXT NOT NULL,
    template TEXT NOT NULL,
    bottles TEXT NOT NULL,
    lineage TEXT NOT NULL,
    UNIQUE (slug, run, agent, template, bottles, lineage)
) STRICT;
CREATE TABLE launch_bottles (
    bottle TEXT NOT NULL,
    launch INTEGER NOT NULL REFERENCES launches (id),
    PRIMARY KEY (bottle, launch)
) STRICT, WITHOUT ROWID;
CREATE TABLE usage (
    number INTEGER PRIMARY KEY,
    id ANY NOT NULL UNIQUE,
    time INTEGER NOT NULL,
    launch INTEGER NOT NULL REFERENCES launches (id),
    key TEXT NOT NULL,
    host TEXT NOT NULL,
    api TEXT NOT NULL,
    model TEXT NOT NULL,
    source TEXT NOT NULL,
    input INTEGER NOT NULL CHECK (input >= 0),
    output INTEGER NOT NULL CHECK (output >= 0),
    cache_read INTEGER NOT NULL CHECK (cache_read >= 0),
    cache_write INTEGER NOT NULL CHECK (cache_write >= 0),
    interrupted INTEGER NOT NULL,
    estimated INTEGER NOT NULL
) STRICT;
CREATE INDEX usage_by_time ON usage (time);
CREATE TABLE sums (
    launch INTEGER NOT NULL REFERENCES launches (id),
    key TEXT NOT NULL,
    period INTEGER NOT NULL,
    host TEXT NOT NULL,
    model TEXT NOT NULL,
    responses INTEGER NOT NULL,
    input INTEGER NOT NULL,
    output INTEGER NOT NULL,
    cache_read INTEGER NOT NULL,
    cache_write INTEGER NOT NULL,
    estimated INTEGER NOT NULL,
    PRIMARY KEY (launch, key, period, host, model)
) STRICT, WITHOUT ROWID;
CREATE TRIGGER usage_is_summed AFTER INSERT ON usage BEGIN
    INSERT INTO sums VALUES (new.launch, new.key, new.time / 900000 * 900000, new.host, new.model, 1, new.input,
        new.output, new.cache_read, new.cache_write, new.estimated)
    ON CONFLICT DO UPDATE SET responses = responses + 1, input = input + excluded.input,
        output = output + excluded.output, cache_read = cache_read + excluded.cache_read,
        cache_write = cache_write + excluded.cache_write, estimated = estimated + excluded.estimated;
END;
CREATE TABLE ingested (
    file TEXT PRIMARY KEY,
    offset INTEGER NOT NULL,
    tail BLOB NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE reservations (
    id INTEGER PRIMARY KEY,
    time INTEGER NOT NULL,
    launch INTEGER NOT NULL REFERENCES launches (id),
    key TEXT NOT NULL,
    tokens INTEGER NOT NULL CHECK (tokens > 0)
) STRICT;
CREATE INDEX reservations_by_launch ON reservations (launch, key, tokens);
CREATE TABLE budgets (
    id INTEGER PRIMARY KEY,
    time INTEGER NOT NULL,
    scope TEXT NOT NULL,
    key TEXT NOT NULL,
    period TEXT NOT NULL,
    tokens INTEGER NOT NULL CHECK (tokens > 0),
    who TEXT NOT NULL
) STRICT;
CREATE INDEX budgets_by_scope ON budgets (scope, key, period, time);
CREATE TABLE enforcement (
    id INTEGER PRIMARY KEY,
    time INTEGER NOT NULL,
    launch INTEGER NOT NULL REFERENCES launches (id),
    scope TEXT NOT NULL,
    key TEXT NOT NULL,
    period TEXT NOT NULL,
    policy TEXT NOT NULL,
    result TEXT NOT NULL
) STRICT;
";

/// The table of leases on budgets. It replaces the table `reservations`, which no version used.
///
/// `reserved` is the part of a lease that no response has used and that the bottle has not returned. A trigger
/// subtracts the tokens of each response from `reserved`, so the sum of spent and reserved tokens does not change when
/// any process ingests a response. `granted` and `returned` are totals since the launch.
const LEASES: &str = "
DROP TABLE reservations;
CREATE TABLE leases (
    launch INTEGER NOT NULL REFERENCES launches (id),
    key TEXT NOT NULL,
    reserved INTEGER NOT NULL CHECK (reserved >= 0),
    granted INTEGER NOT NULL CHECK (granted >= 0),
    returned INTEGER NOT NULL CHECK (returned >= 0),
    PRIMARY KEY (launch, key)
) STRICT, WITHOUT ROWID;
CREATE TRIGGER usage_is_taken_from_the_lease AFTER INSERT ON usage BEGIN
    UPDATE leases
    SET reserved = max(0, reserved - (new.input + new.output + new.cache_read + new.cache_write))
    WHERE launch = new.launch AND key = new.key;
END;
";

/// Migrates the schema to the newest version. Does nothing if the schema is already up to date.
///
/// # Errors
/// [`Cause::Newer`] if a newer version of the program migrated the database, and other causes if the database fails.
/// After an error, the schema is unchanged.
pub(super) fn migrate(connection: &mut Connection) -> Result<(), Cause> {
    if version(connection)? == Some(known()) {
        return Ok(());
    }
    // The version is read again in the transaction, because another process may migrate at the same time.
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction
        .execute_batch("CREATE TABLE IF NOT EXISTS schema_version (version INTEGER NOT NULL) STRICT")?;
    let found = version(&transaction)?.unwrap_or(0);
    let Some(missing) = usize::try_from(found).ok().and_then(|done| MIGRATIONS.get(done..)) else {
        return Err(Cause::Newer { found, known: known() });
    };
    for migration in missing {
        transaction.execute_batch(migration)?;
    }
    transaction.execute("DELETE FROM schema_version", ())?;
    transaction.execute("INSERT INTO schema_version VALUES (?1)", [known()])?;
    transaction.commit()?;
    Ok(())
}

/// The newest schema that this program knows.
pub(super) fn known() -> i64 {
    i64::try_from(MIGRATIONS.len()).unwrap_or(i64::MAX)
}

/// Returns the schema version of the database, or `None` if the database has no version yet.
fn version(connection: &Connection) -> Result<Option<i64>, rusqlite::Error> {
    let exists = "SELECT count(*) FROM sqlite_schema WHERE name = 'schema_version'";
    if connection.query_row(exists, (), |row| row.get::<_, i64>(0))? == 0 {
        return Ok(None);
    }
    connection.query_row("SELECT max(version) FROM schema_version", (), |row| row.get(0))
}
