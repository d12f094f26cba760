//! Decodes frontmatter into its schema, with hints for unknown keys: the keys to offer, and where a misplaced key
//! belongs.

use bottle_contract::yaml::{self, Node, Problem, Value, YamlError};
use serde::de::DeserializeOwned;

use super::error::Fault;
use super::schema::BottleSchema;
use super::{Kind, Position};

/// The fields of Claude Code's subagent files, accepted and ignored so that one file can serve both.
const SUBAGENT_KEYS: &[&str] = &[
    "name",
    "description",
    "tools",
    "disallowedTools",
    "model",
    "permissionMode",
    "maxTurns",
    "mcpServers",
    "hooks",
    "memory",
    "background",
    "effort",
    "isolation",
    "color",
    "initialPrompt",
];

/// Keys of a bottle that are refused until they are enforced.
const UNAVAILABLE_KEYS: &[&str] = &["budget", "cutoff"];

/// Keys of a route that a manifest must not have: one is for generated routes, one is reserved.
const GENERATED_ROUTE_KEYS: &[&str] = &["provider", "role"];

/// Decodes the frontmatter of a manifest.
pub(super) fn decode<T: DeserializeOwned>(kind: Kind, text: &str) -> Result<T, Fault> {
    let fault = |error: YamlError| fault(kind, &error);
    let mut root = yaml::parse(text).map_err(fault)?;
    if let Value::Map(entries) = &mut root.value {
        match kind {
            Kind::Agent => entries.retain(|(key, _)| !SUBAGENT_KEYS.contains(&key.text())),
            Kind::Bottle => entries.iter().try_for_each(refuse_unavailable_key)?,
        }
    }
    yaml::decode(&root).map_err(fault)
}

fn refuse_unavailable_key((key, value): &(Node, Node)) -> Result<(), Fault> {
    let key = key.text();
    if !UNAVAILABLE_KEYS.contains(&key) {
        return Ok(());
    }
    let message = format!("`{key}` is not available yet: no control plane enforces it");
    Err(Fault::new(value.at, message).hint("remove the key; nothing would enforce the limit"))
}

fn fault(kind: Kind, error: &YamlError) -> Fault {
    let hint = match &error.problem {
        Problem::UnknownKey { key, accepted } => {
            let misplaced = if error.path().is_empty() { misplaced_key(kind, key) } else { None };
            Some(misplaced.map_or_else(|| yaml::accepted_keys(key, &offered_keys(accepted)), str::to_owned))
        }
        _ => error.hint(),
    };
    Fault { at: error.at.unwrap_or(Position::START), message: error.message("the frontmatter"), hint }
}

/// The known keys without those that a manifest must not have.
fn offered_keys(known: &[&'static str]) -> Vec<&'static str> {
    let hidden = if known.contains(&"host") { GENERATED_ROUTE_KEYS } else { &[] };
    known.iter().copied().filter(|key| !hidden.contains(key)).collect()
}

/// The hint for a top-level key that belongs in the other kind of manifest.
fn misplaced_key(kind: Kind, key: &str) -> Option<&'static str> {
    match (kind, key) {
        (Kind::Agent, _) if bottle_keys().contains(&key) || UNAVAILABLE_KEYS.contains(&key) => Some(
            "move it to a bottle: an agent may come from a project, which must not widen what its agents may reach",
        ),
        (Kind::Bottle, "bottle") => Some("a bottle includes other bottles with `extends`"),
        (Kind::Bottle, "skills") => Some("skills belong in an agent"),
        _ => None,
    }
}

/// The keys of a bottle, from the error for an unknown one.
fn bottle_keys() -> &'static [&'static str] {
    let text = |text: &str| Node { at: Position::START, value: Value::Text(text.to_owned()) };
    let unknown = Node { at: Position::START, value: Value::Map(vec![(text(""), text(""))]) };
    match yaml::decode::<BottleSchema>(&unknown) {
        Err(YamlError { problem: Problem::UnknownKey { accepted, .. }, .. }) => accepted,
        _ => &[],
    }
}
