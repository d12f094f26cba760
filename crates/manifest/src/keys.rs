//! Decodes frontmatter into its schema. The error for an unknown key has a hint: the most similar key, or the
//! kind of manifest in which the key belongs.

use bottle_text::yaml::{self, Node, Problem, Value, YamlError};
use serde::de::DeserializeOwned;

use super::error::Fault;
use super::schema::BottleSchema;
use super::{Kind, Position};

/// The fields of Claude Code's subagent files. Agent manifests may contain these fields, so that one file can be an
/// agent manifest and a subagent file. The fields are ignored.
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

/// Parses the frontmatter of a manifest, and removes the keys that are ignored.
pub(super) fn parse(kind: Kind, text: &str) -> Result<Node, Fault> {
    let mut root = yaml::parse(text).map_err(|error| fault(kind, &error))?;
    if let Value::Map(entries) = &mut root.value {
        entries.retain(|(key, _)| kind == Kind::Bottle || !SUBAGENT_KEYS.contains(&key.text()));
    }
    Ok(root)
}

/// Decodes the frontmatter of a manifest.
pub(super) fn decode<T: DeserializeOwned>(kind: Kind, root: &Node) -> Result<T, Fault> {
    yaml::decode(root).map_err(|error| fault(kind, &error))
}

fn fault(kind: Kind, error: &YamlError) -> Fault {
    let hint = match &error.problem {
        Problem::UnknownKey { key, accepted } => {
            let misplaced =
                if error.path().is_empty() { misplaced_key(kind, key) } else { nested_key(key, accepted) };
            Some(misplaced.map_or_else(|| yaml::accepted_keys(key, &offered_keys(accepted)), str::to_owned))
        }
        _ => error.hint(),
    };
    let is_unknown_key = matches!(error.problem, Problem::UnknownKey { .. });
    let fault = Fault::new(error.at.unwrap_or(Position::START), error.message("the frontmatter"));
    Fault { hint, is_unknown_key, ..fault }
}

/// Returns the known keys, except those that a manifest must not contain.
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

/// Returns the hint for a key of a route that is written next to `host`, but belongs one level deeper.
fn nested_key(key: &str, accepted: &[&str]) -> Option<&'static str> {
    if !accepted.contains(&"host") {
        return None;
    }
    Some(match key {
        "methods" | "method" => "put it into `matches`: `matches: [{methods: [GET]}]`",
        "paths" | "path" => "put it into `matches`: `matches: [{paths: [{value: /v1}]}]`",
        "headers" => "put it into `matches`: `matches: [{headers: [{name: x-name, value: text}]}]`",
        "fetch" | "git_fetch" => "put it into `git`: `git: {fetch: true}`",
        "scheme" | "token_ref" | "token" | "header" => {
            "put it into `auth`: `auth: {scheme: Bearer, token_ref: env:NAME}`"
        }
        "port" => "it is a list: `ports: [443]`",
        "hosts" => "one route has one `host`; write one list entry for each host",
        _ => return None,
    })
}

/// Returns the keys of a bottle manifest. The function takes the keys from the error for an unknown key.
fn bottle_keys() -> &'static [&'static str] {
    let text = |text: &str| Node { at: Position::START, value: Value::Text(text.to_owned()) };
    let unknown = Node { at: Position::START, value: Value::Map(vec![(text(""), text(""))]) };
    match yaml::decode::<BottleSchema>(&unknown) {
        Err(YamlError { problem: Problem::UnknownKey { accepted, .. }, .. }) => accepted,
        _ => &[],
    }
}
