//! What was probably meant: one measure of nearness for every name a user types or writes.

/// The word among `known` that was most likely meant by `word`, if one is near.
///
/// Case and the choice between `-` and `_` do not count; otherwise a third of the word may differ.
pub(crate) fn suggest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
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
    fn dashes_case_and_slips_are_forgiven() {
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
