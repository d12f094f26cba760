//! Opens the database, and reads and writes its data. Only this module and `series` contain SQL for the data.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::ErrorKind;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bottle_host::rates::Kinds;
use bottle_instance::usage::Labels;
use jiff::Timestamp;
use rusqlite::types::Value;
use rusqlite::{Connection, OpenFlags, OptionalExtension, Row, Transaction, TransactionBehavior, params};

use super::error::{Cause, LedgerError};
use super::schema;

/// The pause between two attempts to lock a database that another process has locked. This pause is shorter than
/// SQLite's own pauses, which grow to 100 ms. With SQLite's pauses, a process among many writers makes only a few
/// attempts and may find the database locked at each attempt.
const BUSY_PAUSE: Duration = Duration::from_millis(2);

/// The maximum number of attempts to lock the database. All attempts together, with the pauses between them, take at
/// least five seconds.
const BUSY_ATTEMPTS: i32 = 2_500;

/// The ledger of one home. It is a thin layer over the database, so that a server can replace the database.
#[derive(Debug)]
pub struct Ledger {
    path: PathBuf,
    connection: Connection,
}

/// The usage of one response, in the form in which the ledger stores it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// The id of the record.
    pub id: String,
    /// The time at which the response ended.
    pub time: Timestamp,
    /// The slug of the bottle.
    pub slug: String,
    /// The labels of the launch, such as its agent and its bottle manifests.
    pub labels: Labels,
    /// The budget key. This is the agent's template if the response came through the template's provider route, and
    /// otherwise the host.
    pub key: String,
    /// The host that sent the response.
    pub host: String,
    /// The wire format of the provider's API.
    pub api: String,
    /// The name of the model. Empty if the model is unknown.
    pub model: String,
    /// The part of the agent that sent the request: `main`, `subagent`, or empty if the client did not name it.
    pub source: String,
    /// The numbers of tokens.
    pub totals: Totals,
    /// Whether the response was interrupted.
    pub interrupted: bool,
}

/// The numbers of tokens of one or more responses. The numbers of different APIs are comparable, because `input` always
/// excludes tokens of the cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// The number of responses.
    pub responses: u64,
    /// Request tokens that were neither read from nor written to the cache.
    pub input: u64,
    /// Tokens of the responses.
    pub output: u64,
    /// Tokens read from the cache.
    pub cache_read: u64,
    /// Tokens written to the cache.
    pub cache_write: u64,
    /// The number of responses with an estimated count.
    pub estimated: u64,
}

impl Totals {
    /// The sum of all tokens.
    #[must_use]
    pub fn total(&self) -> u64 {
        [self.output, self.cache_read, self.cache_write].into_iter().fold(self.input, u64::saturating_add)
    }

    /// The numbers of tokens by kind. Each kind has a different price.
    #[must_use]
    pub fn kinds(&self) -> Kinds {
        let Self { input, output, cache_read, cache_write, .. } = *self;
        Kinds { input, output, cache_read, cache_write }
    }

    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &Self) {
        for (sum, number) in [
            (&mut self.responses, other.responses),
            (&mut self.input, other.input),
            (&mut self.output, other.output),
            (&mut self.cache_read, other.cache_read),
            (&mut self.cache_write, other.cache_write),
            (&mut self.estimated, other.estimated),
        ] {
            *sum = sum.saturating_add(number);
        }
    }
}

/// The launches whose tokens are counted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Measured {
    /// The launch with this id.
    Run(String),
    /// All launches of the bottle with this name.
    Slug(String),
    /// All launches of this agent manifest.
    Agent(String),
    /// All launches with this bottle manifest in their lineage.
    Bottle(String),
    /// All launches.
    All,
}

impl Measured {
    /// Returns the query for the ids of the launches. The query's first parameter is [`Measured::name`].
    fn launches(&self) -> &'static str {
        match self {
            Self::Run(_) => "SELECT id FROM launches WHERE run = ?1",
            Self::Slug(_) => "SELECT id FROM launches WHERE slug = ?1",
            Self::Agent(_) => "SELECT id FROM launches WHERE agent = ?1",
            Self::Bottle(_) => "SELECT launch FROM launch_bottles WHERE bottle = ?1",
            Self::All => "SELECT id FROM launches WHERE ?1 = ''",
        }
    }

    fn name(&self) -> &str {
        match self {
            Self::Run(name) | Self::Slug(name) | Self::Agent(name) | Self::Bottle(name) => name,
            Self::All => "",
        }
    }
}

/// The limit that a top-up raises.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TopUp {
    pub(super) scope: String,
    pub(super) key: String,
    pub(super) period: &'static str,
}

/// A lease as the ledger stores it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct StoredLease {
    /// The granted tokens that no response has used and that the bottle has not returned.
    pub(super) reserved: u64,
    /// The sum of the tokens that were granted since the launch.
    pub(super) granted: u64,
    /// The sum of the tokens that were returned since the launch.
    pub(super) returned: u64,
}

/// The position up to which a usage file was ingested.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Mark {
    /// The number of bytes before the position.
    pub(super) offset: u64,
    /// A hash of the bytes before the position. A different hash shows that the file was replaced.
    pub(super) tail: Vec<u8>,
}

/// The sum of all responses that ended in the same quarter of an hour and have equal values in all columns except
/// `totals`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Summed {
    /// The start of the quarter of an hour.
    pub(super) time: Timestamp,
    pub(super) slug: String,
    pub(super) agent: String,
    pub(super) key: String,
    pub(super) host: String,
    pub(super) model: String,
    pub(super) totals: Totals,
}

/// The length of a period in milliseconds. The table `sums` stores the sums of responses for each period.
const PERIOD: i64 = 15 * 60 * 1000;

impl Ledger {
    /// The name of the database in the directory `$BOTTLE_HOME`.
    pub const FILE: &str = "bottle.db";

    /// Opens the ledger of a home. Creates the ledger if it does not exist. Migrates the ledger if an older version of
    /// this program wrote it.
    ///
    /// # Errors
    /// [`LedgerError`] if the database is damaged, locked or not writable, or if a newer version of this program wrote
    /// it.
    pub fn open(home: &Path) -> Result<Self, LedgerError> {
        Self::open_with_busy_handler(home, pause_while_busy)
    }

    /// Opens the ledger with a handler for a locked database. `busy` receives the number of failed attempts to lock the
    /// database, and returns whether to try again.
    pub(super) fn open_with_busy_handler(home: &Path, busy: fn(i32) -> bool) -> Result<Self, LedgerError> {
        let path = home.join(Self::FILE);
        let opened = open(&path, busy);
        match opened {
            Ok(connection) => Ok(Self { path, connection }),
            Err(cause) => Err(LedgerError::new("open", &path, cause)),
        }
    }

    /// The path of the database.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The connection, for tests that change or block the database.
    #[cfg(test)]
    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Begins a write transaction. Waits while another process writes.
    pub(super) fn begin(&mut self) -> Result<Batch<'_>, LedgerError> {
        let begun = self.connection.transaction_with_behavior(TransactionBehavior::Immediate);
        match begun {
            Ok(transaction) => Ok(Batch { transaction, path: &self.path, launches: HashMap::new() }),
            Err(error) => Err(LedgerError::new("write", &self.path, error)),
        }
    }

    /// Calls `each` with every response since `since`, in chronological order.
    ///
    /// # Errors
    /// [`LedgerError`] if the database cannot be read, or an error that `each` returns.
    pub fn for_each_response<E: From<LedgerError>>(
        &self,
        since: Timestamp,
        mut each: impl FnMut(Response) -> Result<(), E>,
    ) -> Result<(), E> {
        let failed = |error| E::from(LedgerError::new("read", &self.path, Cause::from(error)));
        let mut statement = self.connection.prepare(RESPONSES).map_err(failed)?;
        let mut rows = statement.query([since.as_millisecond()]).map_err(failed)?;
        while let Some(row) = rows.next().map_err(failed)? {
            each(response(row).map_err(failed)?)?;
        }
        Ok(())
    }

    /// Calls `each` with the sums of the responses since `since`.
    pub(super) fn for_each_sum(
        &self,
        since: Timestamp,
        mut each: impl FnMut(Summed),
    ) -> Result<(), LedgerError> {
        let since = since.as_millisecond();
        // Responses between `since` and the first whole period are read one by one.
        let whole_period = -(-since).div_euclid(PERIOD) * PERIOD;
        self.read(|connection| {
            let mut statement = connection.prepare(SUMMED)?;
            let mut rows = statement.query(params![since, whole_period])?;
            while let Some(row) = rows.next()? {
                each(Summed {
                    time: time(row, "period")?,
                    slug: row.get("slug")?,
                    agent: row.get("agent")?,
                    key: row.get("key")?,
                    host: row.get("host")?,
                    model: row.get("model")?,
                    totals: totals(row)?,
                });
            }
            Ok(())
        })
    }

    /// Returns a reader that reads outside of a transaction.
    pub(super) fn reader(&self) -> Reader<'_> {
        Reader { connection: &self.connection, path: &self.path }
    }

    /// Records that a limit was raised.
    pub(super) fn add_top_up(
        &mut self,
        top_up: &TopUp,
        time: Timestamp,
        tokens: u64,
        who: &str,
    ) -> Result<(), LedgerError> {
        let TopUp { scope, key, period } = top_up;
        let statement =
            "INSERT INTO budgets (time, scope, key, period, tokens, who) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
        let columns = params![time.as_millisecond(), scope, key, period, signed(tokens), who];
        let added = self.connection.execute(statement, columns);
        added.map(drop).map_err(|error| LedgerError::new("write", &self.path, error))
    }

    pub(super) fn read<T>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, LedgerError> {
        work(&self.connection).map_err(|error| LedgerError::new("read", &self.path, error))
    }
}

/// Reads sums, inside or outside of a transaction.
#[derive(Clone, Copy)]
pub(super) struct Reader<'l> {
    connection: &'l Connection,
    path: &'l Path,
}

impl Reader<'_> {
    /// Returns the tokens of responses since `since`, for one budget key or for all keys. `since` must be the start of
    /// a quarter of an hour. The start of a day has this property in every time zone.
    pub(super) fn spent(
        &self,
        measured: &Measured,
        key: Option<&str>,
        since: Timestamp,
    ) -> Result<u64, LedgerError> {
        self.spent_in("sums WHERE period >= ?2", measured, key, since)
    }

    /// Like [`Self::spent`], but `since` can be any time. Reads each response since `since`, so `since` should be
    /// recent.
    pub(super) fn recently_spent(
        &self,
        measured: &Measured,
        key: Option<&str>,
        since: Timestamp,
    ) -> Result<u64, LedgerError> {
        self.spent_in("usage WHERE time >= ?2", measured, key, since)
    }

    fn spent_in(
        &self,
        rows: &str,
        measured: &Measured,
        key: Option<&str>,
        since: Timestamp,
    ) -> Result<u64, LedgerError> {
        let query = format!(
            "SELECT coalesce(sum(input + output + cache_read + cache_write), 0) FROM {rows} AND launch IN ({})",
            measured.launches()
        );
        self.sum(&query, measured, since, key)
    }

    /// Returns the reserved tokens of all leases, for one budget key or for all keys.
    pub(super) fn reserved(&self, measured: &Measured, key: Option<&str>) -> Result<u64, LedgerError> {
        let query = format!(
            "SELECT coalesce(sum(reserved), 0) FROM leases WHERE launch IN ({}) AND ?2 <= 0",
            measured.launches()
        );
        self.sum(&query, measured, Timestamp::MIN, key)
    }

    fn sum(
        &self,
        query: &str,
        measured: &Measured,
        since: Timestamp,
        key: Option<&str>,
    ) -> Result<u64, LedgerError> {
        let (name, since) = (measured.name(), since.as_millisecond());
        let sum = self.read(|connection| match key {
            Some(key) => {
                connection
                    .query_row(&format!("{query} AND key = ?3"), params![name, since, key], |row| row.get(0))
            }
            None => connection.query_row(query, params![name, since], |row| row.get(0)),
        });
        sum.map(|sum: i64| u64::try_from(sum).unwrap_or(0))
    }

    /// Returns the number of tokens by which a limit was raised since `since`.
    pub(super) fn topped_up(&self, top_up: &TopUp, since: Timestamp) -> Result<u64, LedgerError> {
        let TopUp { scope, key, period } = top_up;
        let query =
            "SELECT total(tokens) FROM budgets WHERE scope = ?1 AND key = ?2 AND period = ?3 AND time >= ?4";
        let columns = params![scope, key, period, since.as_millisecond()];
        self.read(|connection| connection.query_row(query, columns, |row| row.get(0))).map(whole)
    }

    fn read<T>(&self, work: impl FnOnce(&Connection) -> rusqlite::Result<T>) -> Result<T, LedgerError> {
        work(self.connection).map_err(|error| LedgerError::new("read", self.path, error))
    }
}

/// The statement that reads responses.
const RESPONSES: &str = "
SELECT usage.*, slug, run, agent, template, bottles, lineage, 1 AS responses
FROM usage JOIN launches ON launches.id = usage.launch
WHERE time >= ?1 ORDER BY time, number";

/// The statement that reads the sums of whole periods, and the single responses before the first whole period.
const SUMMED: &str = "
SELECT period, slug, agent, key, host, model, responses, input, output, cache_read, cache_write, estimated
FROM sums JOIN launches ON launches.id = sums.launch WHERE period >= ?2
UNION ALL
SELECT time, slug, agent, key, host, model, 1, input, output, cache_read, cache_write, estimated
FROM usage JOIN launches ON launches.id = usage.launch WHERE time >= ?1 AND time < ?2";

fn pause_while_busy(attempts: i32) -> bool {
    std::thread::sleep(BUSY_PAUSE);
    attempts < BUSY_ATTEMPTS
}

fn open(path: &Path, busy: fn(i32) -> bool) -> Result<Connection, Cause> {
    // The file is created with private permissions, because SQLite gives its other files the permissions of the
    // database file.
    match OpenOptions::new().create_new(true).write(true).mode(0o600).open(path) {
        Ok(_) => {}
        // Other errors are ignored, because SQLite then fails and reports the cause.
        Err(error) if error.kind() == ErrorKind::StorageFull => return Err(Cause::Usage(error)),
        Err(_) => {}
    }
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut connection = Connection::open_with_flags(path, flags)?;
    connection.busy_handler(Some(busy))?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    // A usage file may be shortened as soon as its records are committed, so a commit must survive a power failure.
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "foreign_keys", true)?;
    schema::migrate(&mut connection)?;
    Ok(connection)
}

/// Changes of the database that take effect together.
pub(super) struct Batch<'l> {
    transaction: Transaction<'l>,
    path: &'l Path,
    /// The launches that this batch has looked up.
    launches: HashMap<(String, Labels), i64>,
}

impl Batch<'_> {
    /// Returns the position up to which a file was ingested.
    pub(super) fn mark(&self, file: &str) -> Result<Mark, LedgerError> {
        let query = "SELECT offset, tail FROM ingested WHERE file = ?1";
        let mark = self.transaction.query_row(query, [file], |row| {
            Ok(Mark { offset: unsigned(row, "offset")?, tail: row.get("tail")? })
        });
        Ok(mark.optional().map_err(|error| self.failed(error))?.unwrap_or_default())
    }

    /// Stores the position up to which a file was ingested.
    pub(super) fn set_mark(&self, file: &str, mark: &Mark) -> Result<(), LedgerError> {
        let statement = "INSERT INTO ingested VALUES (?1, ?2, ?3)
            ON CONFLICT (file) DO UPDATE SET offset = excluded.offset, tail = excluded.tail";
        let stored = self.transaction.execute(statement, params![file, signed(mark.offset), mark.tail]);
        stored.map(drop).map_err(|error| self.failed(error))
    }

    /// Adds the responses that are not in the database yet. Returns the number of added responses.
    pub(super) fn add(&mut self, responses: &[Response]) -> Result<usize, LedgerError> {
        self.insert(responses).map_err(|error| self.failed(error))
    }

    fn insert(&mut self, responses: &[Response]) -> rusqlite::Result<usize> {
        let launches: Vec<i64> = responses
            .iter()
            .map(|response| self.launch(&response.slug, &response.labels))
            .collect::<rusqlite::Result<_>>()?;
        let statement = "INSERT INTO usage (id, time, launch, key, host, api, model, source, input, output, cache_read,
            cache_write, interrupted, estimated) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)
            ON CONFLICT (id) DO NOTHING";
        let mut statement = self.transaction.prepare(statement)?;
        let mut added = 0;
        for (response, launch) in responses.iter().zip(launches) {
            let Totals { input, output, cache_read, cache_write, estimated, .. } = response.totals;
            added += statement.execute(params![
                short_id(&response.id),
                response.time.as_millisecond(),
                launch,
                response.key,
                response.host,
                response.api,
                response.model,
                response.source,
                signed(input),
                signed(output),
                signed(cache_read),
                signed(cache_write),
                response.interrupted,
                estimated > 0,
            ])?;
        }
        Ok(added)
    }

    /// Returns the id of a launch. Adds a new launch to the database.
    fn launch(&mut self, slug: &str, labels: &Labels) -> rusqlite::Result<i64> {
        let key = (slug.to_owned(), labels.clone());
        if let Some(id) = self.launches.get(&key) {
            return Ok(*id);
        }
        let Labels { agent, run, template, bottles, lineage } = labels;
        let list = |names: &[String]| serde_json::Value::from(names).to_string();
        let template = template.map(|template| template.to_string()).unwrap_or_default();
        let columns =
            params![slug, run.as_deref().unwrap_or_default(), agent, template, list(bottles), list(lineage),];
        let find = "SELECT id FROM launches WHERE slug = ?1 AND run = ?2 AND agent = ?3 AND template = ?4
            AND bottles = ?5 AND lineage = ?6";
        let found = self.transaction.query_row(find, columns, |row| row.get(0)).optional()?;
        let id = match found {
            Some(id) => id,
            None => {
                let create = "INSERT INTO launches (slug, run, agent, template, bottles, lineage)
                    VALUES (?1, ?2, ?3, ?4, ?5, ?6) RETURNING id";
                let id = self.transaction.query_row(create, columns, |row| row.get(0))?;
                for bottle in lineage {
                    let link = "INSERT INTO launch_bottles VALUES (?1, ?2) ON CONFLICT DO NOTHING";
                    self.transaction.execute(link, params![bottle, id])?;
                }
                id
            }
        };
        self.launches.insert(key, id);
        Ok(id)
    }

    /// Returns the id of a launch and its lease for a budget key. The lease is empty if the launch has no lease for
    /// this key.
    pub(super) fn lease(
        &mut self,
        slug: &str,
        labels: &Labels,
        key: &str,
    ) -> Result<(i64, StoredLease), LedgerError> {
        let launch = self.launch(slug, labels).map_err(|error| self.failed(error))?;
        let query = "SELECT reserved, granted, returned FROM leases WHERE launch = ?1 AND key = ?2";
        let lease = self.transaction.query_row(query, params![launch, key], |row| {
            Ok(StoredLease {
                reserved: unsigned(row, "reserved")?,
                granted: unsigned(row, "granted")?,
                returned: unsigned(row, "returned")?,
            })
        });
        let lease = lease.optional().map_err(|error| self.failed(error))?;
        Ok((launch, lease.unwrap_or_default()))
    }

    /// Stores a lease.
    pub(super) fn set_lease(&self, launch: i64, key: &str, lease: &StoredLease) -> Result<(), LedgerError> {
        let StoredLease { reserved, granted, returned } = *lease;
        let statement = "INSERT INTO leases VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT (launch, key)
            DO UPDATE SET reserved = excluded.reserved, granted = excluded.granted, returned = excluded.returned";
        let columns = params![launch, key, signed(reserved), signed(granted), signed(returned)];
        self.transaction.execute(statement, columns).map(drop).map_err(|error| self.failed(error))
    }

    /// Returns the ids of the runs that have leases.
    pub(super) fn leased_runs(&self) -> Result<Vec<String>, LedgerError> {
        let runs = || -> rusqlite::Result<Vec<String>> {
            let query = "SELECT DISTINCT run FROM leases JOIN launches ON launches.id = leases.launch";
            let mut statement = self.transaction.prepare(query)?;
            statement.query_map((), |row| row.get(0))?.collect()
        };
        runs().map_err(|error| self.failed(error))
    }

    /// Removes the leases of a run.
    pub(super) fn remove_leases(&self, run: &str) -> Result<(), LedgerError> {
        let statement = "DELETE FROM leases WHERE launch IN (SELECT id FROM launches WHERE run = ?1)";
        self.transaction.execute(statement, [run]).map(drop).map_err(|error| self.failed(error))
    }

    /// Records that a budget was enforced.
    pub(super) fn add_enforcement(
        &mut self,
        slug: &str,
        labels: &Labels,
        time: Timestamp,
        [scope, key, period, policy, result]: [&str; 5],
    ) -> Result<(), LedgerError> {
        let launch = self.launch(slug, labels).map_err(|error| self.failed(error))?;
        let statement = "INSERT INTO enforcement (time, launch, scope, key, period, policy, result)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";
        let columns = params![time.as_millisecond(), launch, scope, key, period, policy, result];
        self.transaction.execute(statement, columns).map(drop).map_err(|error| self.failed(error))
    }

    /// Returns a reader that reads within the transaction.
    pub(super) fn reader(&self) -> Reader<'_> {
        Reader { connection: &self.transaction, path: self.path }
    }

    /// Commits the changes.
    pub(super) fn commit(self) -> Result<(), LedgerError> {
        let Self { transaction, path, .. } = self;
        transaction.commit().map_err(|error| LedgerError::new("write", path, error))
    }

    fn failed(&self, error: rusqlite::Error) -> LedgerError {
        LedgerError::new("write", self.path, error)
    }
}

fn response(row: &Row<'_>) -> rusqlite::Result<Response> {
    let list = |column: &str| -> rusqlite::Result<Vec<String>> {
        Ok(serde_json::from_str(&row.get::<_, String>(column)?).unwrap_or_default())
    };
    let run: String = row.get("run")?;
    let template: String = row.get("template")?;
    Ok(Response {
        id: long_id(row.get("id")?),
        time: time(row, "time")?,
        slug: row.get("slug")?,
        labels: Labels {
            agent: row.get("agent")?,
            run: (!run.is_empty()).then_some(run),
            template: serde_json::from_value(template.into()).ok(),
            bottles: list("bottles")?,
            lineage: list("lineage")?,
        },
        key: row.get("key")?,
        host: row.get("host")?,
        api: row.get("api")?,
        model: row.get("model")?,
        source: row.get("source")?,
        totals: totals(row)?,
        interrupted: row.get("interrupted")?,
    })
}

pub(super) fn totals(row: &Row<'_>) -> rusqlite::Result<Totals> {
    Ok(Totals {
        responses: unsigned(row, "responses")?,
        input: unsigned(row, "input")?,
        output: unsigned(row, "output")?,
        cache_read: unsigned(row, "cache_read")?,
        cache_write: unsigned(row, "cache_write")?,
        estimated: unsigned(row, "estimated")?,
    })
}

pub(super) fn time(row: &Row<'_>, column: &str) -> rusqlite::Result<Timestamp> {
    Ok(Timestamp::from_millisecond(row.get(column)?).unwrap_or(Timestamp::UNIX_EPOCH))
}

pub(super) fn unsigned(row: &Row<'_>, column: &str) -> rusqlite::Result<u64> {
    Ok(u64::try_from(row.get::<_, i64>(column)?).unwrap_or(0))
}

/// Converts a sum of top-ups to an integer. SQLite computes the sum as a floating-point number, so that it cannot
/// overflow. The sum is exact up to 2^53.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
fn whole(sum: f64) -> u64 {
    sum as u64
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Returns the form of an id that the database stores. The proxy's ids are 32 hexadecimal digits, which are stored as
/// 16 bytes.
fn short_id(id: &str) -> Value {
    let canonical = id.len() == 32 && !id.bytes().any(|byte| byte.is_ascii_uppercase());
    let bytes = canonical.then(|| hex::decode(id).ok()).flatten();
    bytes.map_or_else(|| Value::Text(id.to_owned()), Value::Blob)
}

fn long_id(stored: Value) -> String {
    match stored {
        Value::Blob(bytes) => hex::encode(bytes),
        Value::Text(text) => text,
        // Unreachable, because no statement stores an id of another type.
        Value::Null | Value::Integer(_) | Value::Real(_) => String::new(),
    }
}
