//! The JSON output of `bottle usage` and `bottle budget`.

use bottle_host::budget::Window;
use bottle_keeper::ledger::{Group, Response, Totals};
use jiff::Timestamp;
use serde::Serialize;

/// An element of the array that `bottle usage --json` prints: one response of a model.
#[derive(Debug, Serialize)]
pub(crate) struct UsageRecord {
    pub(crate) time: Timestamp,
    pub(crate) slug: String,
    /// The id of the launch; absent in records of older versions.
    pub(crate) run: Option<String>,
    pub(crate) agent: String,
    /// The bottle manifests that were chosen, in order.
    pub(crate) bottles: Vec<String>,
    /// All bottle manifests that were merged, in order.
    pub(crate) lineage: Vec<String>,
    /// The agent's template for a response on its provider route, otherwise the host.
    pub(crate) provider: String,
    pub(crate) host: String,
    pub(crate) api: String,
    pub(crate) model: Option<String>,
    /// `main` or `subagent`, if the client says so.
    pub(crate) source: Option<String>,
    pub(crate) tokens: Tokens,
    /// Whether a count is estimated.
    pub(crate) estimated: bool,
    /// Whether the response was interrupted.
    pub(crate) interrupted: bool,
    pub(crate) id: String,
}

/// Numbers of tokens. `input` excludes the tokens read from or written to the provider's cache.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Tokens {
    pub(crate) input: u64,
    pub(crate) output: u64,
    pub(crate) cache_read: u64,
    pub(crate) cache_write: u64,
    pub(crate) total: u64,
}

impl From<&Totals> for Tokens {
    fn from(totals: &Totals) -> Self {
        Self {
            input: totals.input,
            output: totals.output,
            cache_read: totals.cache_read,
            cache_write: totals.cache_write,
            total: totals.total(),
        }
    }
}

impl From<Response> for UsageRecord {
    fn from(response: Response) -> Self {
        let some = |text: String| (!text.is_empty()).then_some(text);
        Self {
            time: response.time,
            slug: response.slug,
            run: response.labels.run,
            agent: response.labels.agent,
            bottles: response.labels.bottles,
            lineage: response.labels.lineage,
            provider: response.key,
            host: response.host,
            api: response.api,
            model: some(response.model),
            source: some(response.source),
            tokens: (&response.totals).into(),
            estimated: response.totals.estimated > 0,
            interrupted: response.interrupted,
            id: response.id,
        }
    }
}

/// An element of the array that `bottle usage --by … --json` prints.
#[derive(Debug, Serialize)]
pub(crate) struct UsageGroup {
    /// The common value; empty if it is unknown.
    pub(crate) name: String,
    pub(crate) tokens: Tokens,
    /// The number of responses.
    pub(crate) responses: u64,
    /// The number of responses with an estimated count.
    pub(crate) estimated: u64,
    /// The cost by `rates.yml`, if there is such a file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cost: Option<Money>,
}

/// An amount of money.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Money {
    pub(crate) amount: f64,
    pub(crate) currency: String,
    /// Whether some models have no rate, so that the amount is higher.
    pub(crate) partial: bool,
}

impl From<&Group> for UsageGroup {
    fn from(Group { name, totals }: &Group) -> Self {
        Self {
            name: name.clone(),
            tokens: totals.into(),
            responses: totals.responses,
            estimated: totals.estimated,
            cost: None,
        }
    }
}

/// An element of the array that `bottle budget --json` prints, and the output of `bottle budget add --json`.
#[derive(Debug, Serialize)]
pub(crate) struct BudgetLine {
    /// `host`, `ceiling`, `agent:NAME`, `bottle:NAME` or `run:SLUG`.
    pub(crate) scope: String,
    /// A template for its provider route, a host, or `all`.
    pub(crate) provider: String,
    pub(crate) window: Window,
    /// Tokens that responses used in the current window.
    pub(crate) spent: u64,
    /// Tokens that are reserved for requests without a response.
    pub(crate) reserved: u64,
    /// The declared limit and the top-ups of the current window.
    pub(crate) limit: u64,
    /// The declared limit.
    pub(crate) declared: u64,
    pub(crate) left: u64,
    /// With `--agent`: whether it governs this agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) governs: Option<bool>,
    /// The file and line, or the flag.
    pub(crate) origin: String,
}
