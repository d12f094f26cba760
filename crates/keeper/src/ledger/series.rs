//! Reads the data for dashboards: the tokens of the last minutes, the tokens of each bottle, and the models that one
//! bottle used.

use std::collections::BTreeMap;

use bottle_policy::names::Slug;
use jiff::Timestamp;
use rusqlite::params;

use super::error::LedgerError;
use super::repository::{Ledger, Totals, time, totals, unsigned};

/// The tokens that one launch used of one budget key in one minute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Minute {
    /// The start of the minute.
    pub start: Timestamp,
    /// The name of the bottle.
    pub slug: String,
    /// The id of the launch. Empty in records of older versions.
    pub run: String,
    /// The name of the agent manifest.
    pub agent: String,
    /// The names of all bottle manifests that were merged for the launch.
    pub lineage: Vec<String>,
    /// The budget key, which is the agent's template or the host.
    pub key: String,
    /// The sum of all tokens.
    pub tokens: u64,
}

/// The usage of one model by one part of a bottle's agent, such as a subagent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceUsage {
    /// The name of the model. Empty if the model is unknown.
    pub model: String,
    /// The part of the agent: `main`, `subagent`, or empty if the client did not name it.
    pub source: String,
    /// The sums of the tokens.
    pub totals: Totals,
}

impl Ledger {
    /// Returns the tokens of each minute since `since`. Reads every response since `since`, so `since` should be
    /// recent.
    ///
    /// # Errors
    /// [`LedgerError`] if the database cannot be read.
    pub fn minutes(&self, since: Timestamp) -> Result<Vec<Minute>, LedgerError> {
        self.read(|connection| {
            let mut statement = connection.prepare(MINUTES)?;
            let mut rows = statement.query([since.as_millisecond()])?;
            let mut minutes = Vec::new();
            while let Some(row) = rows.next()? {
                minutes.push(Minute {
                    start: time(row, "start")?,
                    slug: row.get("slug")?,
                    run: row.get("run")?,
                    agent: row.get("agent")?,
                    lineage: serde_json::from_str(&row.get::<_, String>("lineage")?).unwrap_or_default(),
                    key: row.get("key")?,
                    tokens: unsigned(row, "tokens")?,
                });
            }
            Ok(minutes)
        })
    }

    /// Returns the sum of the tokens of all launches of each bottle, by the bottle's name.
    ///
    /// # Errors
    /// [`LedgerError`] if the database cannot be read.
    pub fn tokens_by_bottle(&self) -> Result<BTreeMap<String, u64>, LedgerError> {
        self.read(|connection| {
            let mut statement = connection.prepare(BY_BOTTLE)?;
            let rows = statement.query_map((), |row| Ok((row.get("slug")?, unsigned(row, "tokens")?)))?;
            rows.collect()
        })
    }

    /// Returns the usage of a bottle since `since` by model and source, largest first. Reads the responses of all
    /// bottles since `since`.
    ///
    /// # Errors
    /// [`LedgerError`] if the database cannot be read.
    pub fn sources(&self, slug: &Slug, since: Timestamp) -> Result<Vec<SourceUsage>, LedgerError> {
        self.read(|connection| {
            let mut statement = connection.prepare(SOURCES)?;
            let rows = statement.query_map(params![slug.as_str(), since.as_millisecond()], |row| {
                Ok(SourceUsage { model: row.get("model")?, source: row.get("source")?, totals: totals(row)? })
            })?;
            rows.collect()
        })
    }

    /// Returns the budget keys from which each bottle used tokens, sorted by name.
    ///
    /// # Errors
    /// [`LedgerError`] if the database cannot be read.
    pub fn keys_by_bottle(&self) -> Result<BTreeMap<String, Vec<String>>, LedgerError> {
        self.read(|connection| {
            let mut statement = connection.prepare(KEYS)?;
            let mut rows = statement.query(())?;
            let mut keys: BTreeMap<String, Vec<String>> = BTreeMap::new();
            while let Some(row) = rows.next()? {
                keys.entry(row.get("slug")?).or_default().push(row.get("key")?);
            }
            Ok(keys)
        })
    }
}

/// The query for the responses since a time, summed up for each launch, budget key and minute.
const MINUTES: &str = "
SELECT time / 60000 * 60000 AS start, slug, run, agent, lineage, key,
    sum(input + output + cache_read + cache_write) AS tokens
FROM usage JOIN launches ON launches.id = usage.launch
WHERE time >= ?1 GROUP BY launch, key, start ORDER BY start, launch, key";

/// The query for the tokens of each bottle. The inner query groups by launch, because the table `sums` is sorted by
/// launch.
const BY_BOTTLE: &str = "
SELECT slug, sum(tokens) AS tokens
FROM (SELECT launch, sum(input + output + cache_read + cache_write) AS tokens FROM sums GROUP BY launch)
JOIN launches ON launches.id = launch GROUP BY slug";

/// The query for the budget keys of each bottle.
const KEYS: &str = "
SELECT DISTINCT slug, key FROM (SELECT DISTINCT launch, key FROM sums)
JOIN launches ON launches.id = launch ORDER BY slug, key";

/// The query for the responses of one bottle since a time, summed up by model and source. The `+` prevents a query plan
/// that does not use the index on `time`.
const SOURCES: &str = "
SELECT model, source, count(*) AS responses, sum(input) AS input, sum(output) AS output, sum(cache_read) AS cache_read,
    sum(cache_write) AS cache_write, sum(estimated) AS estimated
FROM usage WHERE time >= ?2 AND +launch IN (SELECT id FROM launches WHERE slug = ?1)
GROUP BY model, source ORDER BY sum(input + output + cache_read + cache_write) DESC, model, source";
