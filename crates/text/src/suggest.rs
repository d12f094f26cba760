//! Suggests the nearest known word for a mistyped word.

/// Returns the word in `known` that is nearest to `word`, or `None` if no word is near enough.
///
/// The comparison ignores case and the difference between `-` and `_`. At most a third of the characters of the known
/// word may differ.
#[must_use]
pub fn suggest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let flat = |text: &str| text.to_lowercase().replace('_', "-");
    let wanted = flat(word);
    known
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(&wanted, &flat(candidate)), candidate))
        .filter(|(distance, candidate)| *distance <= candidate.len().max(3) / 3)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignores_case_and_dashes_and_small_typing_errors() {
        let keys = ["extends", "git-gate", "agent_provider", "supervise"];
        for (typed, meant) in [
            ("extend", Some("extends")),
            ("git_gate", Some("git-gate")),
            ("agent-provider", Some("agent_provider")),
            ("Supervize", Some("supervise")),
            ("colour", None),
        ] {
            assert_eq!(suggest(typed, keys), meant, "{typed}");
        }
    }
}
