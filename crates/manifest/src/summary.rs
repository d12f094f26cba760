//! The one-line summary of a manifest, shown in lists.

use super::frontmatter;

/// The maximum number of characters of a summary. A longer summary is truncated, and ends with an ellipsis.
const MAX_CHARS: usize = 160;

/// Returns the first non-empty line of the body, or else the first non-empty comment in the frontmatter. Returns `None`
/// if both are absent, or if the frontmatter is not closed.
#[must_use]
pub(super) fn summary(text: &str) -> Option<String> {
    let split = frontmatter::split(text).ok()?;
    let comments = split.yaml.unwrap_or_default().lines().filter(|line| line.trim_start().starts_with('#'));
    split.body.lines().chain(comments).find_map(plain_line)
}

/// Removes the marks of a heading or comment from a line; Returns `None` if no text remains.
fn plain_line(line: &str) -> Option<String> {
    let words = line.trim().trim_start_matches('#').trim();
    let cut = words.char_indices().nth(MAX_CHARS).map(|(at, _)| &words[..at]);
    (!words.is_empty()).then(|| cut.map_or_else(|| words.to_owned(), |cut| format!("{cut}…")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_the_first_non_empty_line() {
        for (text, expected) in [
            ("You review.\nThen you stop.", Some("You review.")),
            ("---\n# A comment.\nbottle: a\n---\n\n# Reviewer\n\nYou review.", Some("Reviewer")),
            ("---\n#\n  # About this one.\nbottle: a\n---\n", Some("About this one.")),
            ("---\nbottle: a # not this\n---\n\n\n", None),
            ("---\n# never closed\n", None),
            ("", None),
            ("\u{feff}---\r\n---\r\nWords.\r\n", Some("Words.")),
        ] {
            assert_eq!(summary(text).as_deref(), expected, "{text:?}");
        }
    }

    #[test]
    fn truncates_a_giant_line_between_characters() {
        let line = summary(&"é".repeat(1000)).expect("a line");
        assert_eq!(line.chars().count(), MAX_CHARS + 1);
        assert!(line.ends_with('…'));
    }
}
