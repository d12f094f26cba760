//! Rules about pushes.

use super::{Found, Rule};
use crate::call::Call;
use crate::text::Text;

/// The words of a git command after the global options of git. The first word is the subcommand.
pub(crate) fn subcommand<'a>(call: &Call<'a>) -> &'a [Text] {
    let words = call.arguments();
    let mut index = 0;
    while let Some(word) = words.get(index) {
        match word.value.as_str() {
            "-C" | "-c" | "--git-dir" | "--work-tree" | "--namespace" | "--exec-path" | "--config-env" => {
                index += 2
            }
            value if value.starts_with('-') => index += 1,
            _ => break,
        }
    }
    words.get(index..).unwrap_or_default()
}

pub(super) fn check(call: &Call<'_>) -> Vec<Found> {
    if call.program != "git" {
        return Vec::new();
    }
    let Some((name, words)) = subcommand(call).split_first() else { return Vec::new() };
    if name.value != "push" {
        return Vec::new();
    }
    words
        .iter()
        .find_map(|word| why(&word.value))
        .map(|why| (Rule::GitForcePush, why.to_owned()))
        .into_iter()
        .collect()
}

/// Returns what a word of a push command does, if the word overwrites or deletes branches.
fn why(word: &str) -> Option<&'static str> {
    if let Some(long) = word.strip_prefix("--") {
        let name = long.split('=').next().unwrap_or_default();
        // git accepts abbreviated option names.
        let is = |full: &str, shortest: usize| name.len() >= shortest && full.starts_with(name);
        return match name {
            _ if is("force-with-lease", 3) || name == "force" || name == "forc" => {
                Some("overwrites branches of a server")
            }
            _ if is("mirror", 1) || is("prune", 3) || is("delete", 2) => Some("deletes branches of a server"),
            _ => None,
        };
    }
    if let Some(letters) = word.strip_prefix('-') {
        // `-o` has a value, which may contain any letter.
        let letters = letters.split('o').next().unwrap_or_default();
        return match letters {
            _ if letters.contains('f') => Some("overwrites branches of a server"),
            _ if letters.contains('d') => Some("deletes branches of a server"),
            _ => None,
        };
    }
    match word {
        word if word.starts_with('+') => Some("overwrites branches of a server"),
        word if word.starts_with(':') && word.len() > 1 => Some("deletes branches of a server"),
        _ => None,
    }
}
