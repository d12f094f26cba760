//! Decodes frontmatter into its schema. The error for an unknown key has a hint: the most similar key, or the
//! kind of manifest in which the key belongs.

use bottle_contract::yaml::{self, Node, Problem, Value, YamlError};
use serde::de::DeserializeOwned;

use super::error::Fault;
use super::schema::BottleSchema;
use super::{Kind, Position};

/// The fields of Claude Code's subagent files. Agent manifests may contain these fields, which are ignored,
/// so that one file can be used for both.
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

/// Keys of a route that a manifest must not contain: `provider` is for generated routes, and `role` is
/// reserved.
const GENERATED_ROUTE_KEYS: &[&str] = &["provider", "role"];

/// Decodes the frontmatter of a manifest.
pub(super) fn decode<T: DeserializeOwned>(kind: Kind, text: &str) -> Result<T, Fault> {
    let fault = |error: YamlError| fault(kind, &error);
    let mut root = yaml::parse(text).map_err(fault)?;
    if let Value::Map(entries) = &mut root.value {
        entries.retain(|(key, _)| kind == Kind::Bottle || !SUBAGENT_KEYS.contains(&key.text()));
    }
    yaml::decode(&root).map_err(fault)
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

/// Returns the known keys without those that a manifest must not contain.
fn offered_keys(known: &[&'static str]) -> Vec<&'static str> {
    let hidden = if known.contains(&"host") { GENERATED_ROUTE_KEYS } else { &[] };
    known.iter().copied().filter(|key| !hidden.contains(key)).collect()
}

/// Returns the hint for a top-level key that belongs in the other kind of manifest.
fn misplaced_key(kind: Kind, key: &str) -> Option<&'static str> {
    match (kind, key) {
        (Kind::Agent, _) if bottle_keys().contains(&key) => Some(
            "move it to a bottle: an agent may come from a project, which must not widen what its agents may reach",
        ),
        (Kind::Bottle, "bottle") => Some("a bottle includes other bottles with `extends`"),
        (Kind::Bottle, "skills") => Some("skills belong in an agent"),
        _ => None,
    }
}

/// Returns the keys of a bottle manifest. They are read from the error message for an unknown key.
fn bottle_keys() -> &'static [&'static str] {
    let text = |text: &str| Node { at: Position::START, value: Value::Text(text.to_owned()) };
    let unknown = Node { at: Position::START, value: Value::Map(vec![(text(""), text(""))]) };
    match yaml::decode::<BottleSchema>(&unknown) {
        Err(YamlError { problem: Problem::UnknownKey { accepted, .. }, .. }) => accepted,
        _ => &[],
    }
}
