//! What to say about a key that is not known: which ones to offer, and where it belongs instead.
//!
//! A wire type knows more keys than a user should be offered: what is only tolerated, what is reserved,
//! and what must wait.

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

/// Keys of a bottle that are refused until something enforces them.
const LATER_KEYS: &[&str] = &["budget", "cutoff"];

/// Keys of a route that are known and not for a manifest: one is for generated routes, one reserved.
const ROUTE_KEYS_OF_OTHERS: &[&str] = &["provider", "role"];

/// The keys of a bottle that people try in an agent.
const BOTTLE_KEYS: &[&str] =
    &["extends", "env", "agent_provider", "egress", "supervise", "backend", "resources", "budget", "cutoff"];

/// The keys worth offering out of those that are known: not what is tolerated, reserved, or must wait.
pub(super) fn offered_keys(known: &[&'static str]) -> Vec<&'static str> {
    let hidden = if known.contains(&"skills") {
        SUBAGENT_KEYS
    } else if known.contains(&"extends") {
        LATER_KEYS
    } else if known.contains(&"host") {
        ROUTE_KEYS_OF_OTHERS
    } else {
        &[]
    };
    known.iter().copied().filter(|key| !hidden.contains(key)).collect()
}

/// What to say about a key that belongs in the other kind of manifest, at the root of a file.
pub(super) fn misplaced_key(path: &str, key: &str, known: &[&str]) -> Option<&'static str> {
    if !path.is_empty() {
        return None;
    }
    let agent = known.contains(&"skills");
    if agent && BOTTLE_KEYS.contains(&key) {
        Some(
            "it belongs in a bottle: an agent says who works, and may come from a project, which must not say what the agent may reach",
        )
    } else if !agent && key == "bottle" {
        Some("a bottle takes over others with `extends`")
    } else if !agent && key == "skills" {
        Some("skills belong in an agent")
    } else {
        None
    }
}
