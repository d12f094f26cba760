//! Hints for unknown keys: the keys to offer, and where a misplaced key belongs.
//!
//! A wire type has more keys than a user should be offered: some are only tolerated, reserved, or not yet available.

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

/// Keys of a bottle that users may try in an agent.
const BOTTLE_KEYS: &[&str] =
    &["extends", "env", "agent_provider", "egress", "supervise", "backend", "resources", "budget", "cutoff"];

/// The known keys without those that are only tolerated, reserved, or not yet available.
pub(super) fn offered_keys(known: &[&'static str]) -> Vec<&'static str> {
    let hidden = if known.contains(&"skills") {
        SUBAGENT_KEYS
    } else if known.contains(&"extends") {
        UNAVAILABLE_KEYS
    } else if known.contains(&"host") {
        GENERATED_ROUTE_KEYS
    } else {
        &[]
    };
    known.iter().copied().filter(|key| !hidden.contains(key)).collect()
}

/// The hint for a top-level key that belongs in the other kind of manifest.
pub(super) fn misplaced_key(path: &str, key: &str, known: &[&str]) -> Option<&'static str> {
    if !path.is_empty() {
        return None;
    }
    let agent = known.contains(&"skills");
    if agent && BOTTLE_KEYS.contains(&key) {
        Some(
            "move it to a bottle: an agent may come from a project, which must not widen what its agents may reach",
        )
    } else if !agent && key == "bottle" {
        Some("a bottle includes other bottles with `extends`")
    } else if !agent && key == "skills" {
        Some("skills belong in an agent")
    } else {
        None
    }
}
