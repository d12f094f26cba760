//! What a manifest is about, in one line, for whoever has to choose among many.

use super::frontmatter;

/// The longest line; the rest is cut off with an ellipsis.
const LONGEST: usize = 160;

/// The first line that says something: of the body, else of the comments in the frontmatter. None when there is
/// neither, or the frontmatter is never closed.
#[must_use]
pub(super) fn summary(text: &str) -> Option<String> {
    let split = frontmatter::split(text).ok()?;
    let comments = split.yaml.unwrap_or_default().lines().filter(|line| line.trim_start().starts_with('#'));
    split.body.lines().chain(comments).find_map(said)
}

/// A line without the marks of a heading or a comment; none when nothing is left.
fn said(line: &str) -> Option<String> {
    let words = line.trim().trim_start_matches('#').trim();
    let cut = words.char_indices().nth(LONGEST).map(|(at, _)| &words[..at]);
    (!words.is_empty()).then(|| cut.map_or_else(|| words.to_owned(), |cut| format!("{cut}…")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_that_says_something() {
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
    fn a_giant_line_is_cut_between_characters() {
        let line = summary(&"é".repeat(1000)).expect("a line");
        assert_eq!(line.chars().count(), LONGEST + 1);
        assert!(line.ends_with('…'));
    }
}
