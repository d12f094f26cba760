//! The JSON output of `bottle usage` and `bottle budget`.

use bottle_host::budget::Window;
use bottle_keeper::ledger::{Group, Response, Totals};
use jiff::Timestamp;
use serde::Serialize;

/// An element of the array that `bottle usage --json` prints: one response of a model.
#[derive(Debug, Serialize)]
pub struct UsageRecord {
    /// When the response ended.
    pub time: Timestamp,
    /// The slug of the bottle.
    pub slug: String,
    /// The id of the launch; absent in records of older versions.
    pub run: Option<String>,
    /// The name of the agent manifest.
    pub agent: String,
    /// The bottle manifests that were chosen, in order.
    pub bottles: Vec<String>,
    /// All bottle manifests that were merged, in order.
    pub lineage: Vec<String>,
    /// The name of the agent's template if the response came over the agent's provider route, otherwise the host.
    pub provider: String,
    /// The host that answered.
    pub host: String,
    /// The API of the request. The API determines how the tokens were counted.
    pub api: String,
    /// The model that answered. `None` if the response names no model.
    pub model: Option<String>,
    /// `main` or `subagent`, if the client says so.
    pub source: Option<String>,
    /// The tokens of the response.
    pub tokens: Tokens,
    /// Whether a count is estimated.
    pub estimated: bool,
    /// Whether the response was interrupted.
    pub interrupted: bool,
    /// The id of the response. The id prevents a response from being counted twice.
    pub id: String,
}

/// Numbers of tokens. `input` excludes the tokens read from or written to the provider's cache.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Tokens {
    /// Tokens that the model read, without the tokens of the cache.
    pub input: u64,
    /// Tokens that the model wrote.
    pub output: u64,
    /// Tokens that were read from the cache.
    pub cache_read: u64,
    /// Tokens that were written to the cache.
    pub cache_write: u64,
    /// The sum of all tokens.
    pub total: u64,
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
pub struct UsageGroup {
    /// The value that the responses of the group have in common. Empty if the value is unknown.
    pub name: String,
    /// The tokens of all responses.
    pub tokens: Tokens,
    /// The number of responses.
    pub responses: u64,
    /// The number of responses with an estimated count.
    pub estimated: u64,
    /// The cost, computed with `rates.yml`, if this file exists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<Money>,
}

/// An amount of money.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Money {
    /// The amount in units of the currency.
    pub amount: f64,
    /// The currency, as `rates.yml` names it.
    pub currency: String,
    /// Whether some models have no rate. The real amount is then higher.
    pub partial: bool,
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
pub struct BudgetLine {
    /// `host`, `ceiling`, `agent:NAME`, `bottle:NAME` or `run:SLUG`.
    pub scope: String,
    /// The name of a template for the template's provider route, a host, or `all`.
    pub provider: String,
    /// The period after which the count of tokens begins again.
    pub window: Window,
    /// Tokens that responses used in the current window.
    pub spent: u64,
    /// Tokens that are reserved for requests without a response.
    pub reserved: u64,
    /// The declared limit and the top-ups of the current window.
    pub limit: u64,
    /// The declared limit.
    pub declared: u64,
    /// The number of tokens of the limit that are neither spent nor reserved.
    pub left: u64,
    /// With `--agent`: whether the budget governs this agent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub governs: Option<bool>,
    /// The file and line, or the flag, that declares the budget.
    pub origin: String,
}
