//! Splits a manifest file into its YAML frontmatter and its body.
//!
//! The frontmatter consists of a first line `---`, YAML, and another line `---`. The text is not changed. The
//! YAML includes its opening line, which is a document start in YAML, so that a position in the YAML is also
//! the position in the file. The body consists of every byte after the closing line. A leading byte-order
//! mark is skipped. A line ends in `\n` or `\r\n`.

/// The two parts of a manifest file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Split<'a> {
    /// The YAML from the opening `---` line up to the closing line; `None` if the file has no frontmatter.
    pub yaml: Option<&'a str>,
    /// The text after the closing line, or the whole file if it has no frontmatter.
    pub body: &'a str,
}

/// The error for frontmatter that has no closing line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the frontmatter opened by `---` is never closed")]
pub struct Unclosed;

/// Splits a file. If the text does not begin with a `---` line, all of it is the body.
///
/// # Errors
/// Returns [`Unclosed`] if the text has an opening line but no closing line.
pub fn split(text: &str) -> Result<Split<'_>, Unclosed> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut lines = text.split_inclusive('\n');
    let Some(opening) = lines.next().filter(|line| is_fence(line)) else {
        return Ok(Split { yaml: None, body: text });
    };
    let mut end = opening.len();
    for line in lines {
        if is_fence(line) {
            return Ok(Split { yaml: Some(&text[..end]), body: &text[end + line.len()..] });
        }
        end += line.len();
    }
    Err(Unclosed)
}

/// Whether a line is `---`. Trailing whitespace is ignored.
fn is_fence(line: &str) -> bool {
    line.strip_prefix("---").is_some_and(|rest| rest.chars().all(|c| matches!(c, ' ' | '\t' | '\r' | '\n')))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn splits_common_files() {
        for (text, yaml, body) in [
            ("---\na: 1\n---\nhello\n", Some("---\na: 1\n"), "hello\n"),
            ("\u{feff}---\r\na: 1\r\n---\r\nhello\r\n", Some("---\r\na: 1\r\n"), "hello\r\n"),
            ("--- \n---\n\n body", Some("--- \n"), "\n body"),
            ("---\na: 1\n---", Some("---\na: 1\n"), ""),
            ("just a prompt\n---\n", None, "just a prompt\n---\n"),
            ("----\nrule\n", None, "----\nrule\n"),
            ("", None, ""),
        ] {
            assert_eq!(split(text), Ok(Split { yaml, body }), "{text:?}");
        }
        for text in ["---", "---\na: 1\n", "---\na: 1\n ---\n", "---\n--- x\n"] {
            assert_eq!(split(text), Err(Unclosed), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn preserves_every_byte(yaml in "([a-z: \\-]{0,8}\n){0,5}", body in "\\PC{0,40}", crlf: bool, mark: bool) {
            prop_assume!(!yaml.lines().any(is_fence));
            let newline = if crlf { "\r\n" } else { "\n" };
            let yaml = yaml.replace('\n', newline);
            let mark = if mark { "\u{feff}" } else { "" };
            let text = format!("{mark}---{newline}{yaml}---{newline}{body}");
            let parts = split(&text).expect("closed");
            let expected = format!("---{newline}{yaml}");
            prop_assert_eq!(parts.yaml, Some(expected.as_str()));
            prop_assert_eq!(parts.body, body.as_str());
        }

        #[test]
        fn splits_or_refuses_any_text(text in "(---|\n|\r|\u{feff}|[a-z ]|é){0,30}") {
            if let Ok(parts) = split(&text) {
                prop_assert!(text.ends_with(parts.body));
                prop_assert!(parts.yaml.is_none_or(|yaml| text.contains(yaml)));
            }
        }
    }
}
