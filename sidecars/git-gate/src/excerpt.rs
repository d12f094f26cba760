//! Builds the excerpt that shows the user the line of a finding, with the secrets masked.

use std::ops::Range;

use bottle_scan::{Excerpt, Scanner};
use bottle_text::terminal::inert;

/// The maximum number of bytes of a line that are shown on each side of a finding.
const AROUND: usize = 60;

/// The maximum length in bytes of a line that gets an excerpt. The excerpt of a longer line could contain a part of a
/// secret.
pub(crate) const LONGEST_LINE: usize = 64 << 10;

/// Returns the part of `line` around the finding at `own`. Masks this finding, the other findings at `others`, and
/// everything that `scanner` finds in the line, including warnings. Returns `None` if the line is too long.
pub(crate) fn excerpt(
    line: &[u8],
    own: Range<usize>,
    others: impl IntoIterator<Item = Range<usize>>,
    scanner: &Scanner,
) -> Option<String> {
    if line.len() > LONGEST_LINE {
        return None;
    }
    let report = scanner.scan(line);
    if report.more {
        return None;
    }
    let found = report.findings.iter().map(|finding| finding.span.within(line.len()));
    let Excerpt { text, cut_before, cut_after } =
        bottle_scan::excerpt(line, own, others.into_iter().chain(found), AROUND);
    let cut = |is_cut: bool| if is_cut { "…" } else { "" };
    let text = text.replace(['\n', '\r', '\t'], " ");
    Some(format!("{}{}{}", cut(cut_before), inert(text.trim()), cut(cut_after)))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bottle_policy::secret::Secret;
    use bottle_scan::KnownSecrets;

    use super::*;

    fn scanner() -> Scanner {
        let secret = Secret::new("correct-horse-battery-staple".to_owned());
        Scanner::outbound(Arc::new(KnownSecrets::new([&secret]).expect("a secret")))
    }

    #[test]
    fn redacts_every_secret_of_the_line() {
        let token = "AKIAQWERTYUIOPASDFG2";
        let scanner = scanner();
        for (line, expected) in [
            (format!("key = {token} # old"), "key = [redacted] # old"),
            (format!("  \"k\": \"{token}\","), "\"k\": \"[redacted]\","),
            (format!("K={token}x/rest"), "K=[redacted]"),
            (format!("{token} and correct-horse-battery-staple"), "[redacted] and [redacted]"),
            (format!("a\u{1b}[31m {token}"), "[redacted]"),
            (format!("{} {token} {}", "b ".repeat(50), "c ".repeat(50)), "[redacted]"),
        ] {
            let at = line.find(token).expect("the token");
            let shown = excerpt(line.as_bytes(), at..at + 10, [], &scanner).expect("an excerpt");
            assert!(shown.contains(expected), "{shown}");
            assert!(!shown.contains(&token[..8]) && !shown.contains(&token[12..]), "{shown}");
            assert!(!shown.contains("staple") && !shown.contains('\u{1b}'), "{shown}");
            assert!(shown.len() < 160, "{shown}");
        }
        assert_eq!(excerpt(&vec![b'a'; LONGEST_LINE + 1], 0..1, [], &scanner), None);
    }

    proptest::proptest! {
        #[test]
        fn never_panics_on_any_line(line: Vec<u8>, start in 0_usize..99, length in 0_usize..99) {
            let _ = excerpt(&line, start..start + length, Some(start..start + 1), &scanner());
        }
    }
}
