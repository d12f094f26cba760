//! Formats parts of messages: counts, escaped names and quoted words.

use std::fmt;
use std::path::Path;

use bottle_policy::names::Name;
pub use bottle_text::terminal::inert;

/// Formats a number with its noun: `1 file`, `3 files`.
pub fn counted<N: fmt::Display + PartialEq + From<u8>>(count: N, noun: &str) -> String {
    let plural = if count == N::from(1) { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

/// Escapes untrusted text to a single line, so that a file name with a line break cannot imitate a line of
/// bottle's output.
pub fn one_line(text: &str) -> String {
    inert(text).replace('\n', "\\n").replace('\t', "\\t")
}

/// Escapes a path to a single line.
pub fn shown(path: &Path) -> String {
    one_line(&path.display().to_string())
}

/// Quotes a word for a shell command, on one line.
pub fn quoted(word: &str) -> String {
    let word = one_line(word);
    shlex::try_quote(&word).map(Into::into).unwrap_or(word)
}

/// Joins names with commas.
pub fn names(names: &[Name]) -> String {
    names.iter().map(Name::as_str).collect::<Vec<_>>().join(", ")
}

/// Replaces the user's home directory in a text with `~`.
pub fn from_home(text: &str, home: &Path) -> String {
    match home.to_str().filter(|home| home.len() > 1) {
        Some(home) => text.replace(&format!("{}/", home.trim_end_matches('/')), "~/"),
        None => text.to_owned(),
    }
}
