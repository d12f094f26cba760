//! The key `mcp` of one layer: which bottles the agent of a bottle may start, and what the agent may do with these
//! bottles.

use std::collections::BTreeSet;

use bottle_policy::names::Name;
use serde::{Deserialize, Serialize};

use super::Spanned;
use super::error::Fault;
use super::name::parse_name;
pub use super::schema::Access;
use super::schema::McpSchema;

/// The maximum number of children that a bottle may have at the same time.
const MAX_BOTTLES: u64 = 16;

/// The rules for the children of a bottle, which are the bottles that its agent starts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChildRules {
    /// The agents that the children may run, sorted. If the list is empty, the bottle's agent may not start bottles.
    pub agents: Vec<Name>,
    /// The maximum number of children, running or kept, at the same time.
    pub bottles: u64,
    /// What the bottle's agent may do with the children.
    pub access: Access,
}

impl ChildRules {
    pub(super) fn from_schema(schema: Spanned<McpSchema>) -> Result<Spanned<Self>, Fault> {
        let Spanned { value: McpSchema { agents, bottles, access }, at } = schema;
        let is_off = agents.is_none() && bottles.is_none() && access.is_none();
        let agents: BTreeSet<Name> = agents
            .unwrap_or_default()
            .into_iter()
            .map(|name| Ok(parse_name("mcp.agents", name)?.value))
            .collect::<Result<_, Fault>>()?;
        if agents.is_empty() && !is_off {
            return Err(Fault::new(at, "`mcp.agents` must name at least one agent")
                .hint("for example `mcp: {agents: [tester]}`; `mcp: {}` turns it off"));
        }
        let bottles = match bottles {
            None => 1,
            Some(number) if (1..=MAX_BOTTLES).contains(&number.value) => number.value,
            Some(number) => {
                let message = format!("`mcp.bottles` must be between 1 and {MAX_BOTTLES}");
                return Err(Fault::new(number.at, message));
            }
        };
        let agents = agents.into_iter().collect();
        Ok(Spanned::new(Self { agents, bottles, access: access.unwrap_or_default() }, at))
    }
}
