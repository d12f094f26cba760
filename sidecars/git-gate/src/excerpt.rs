//! Shows the user the line of a finding without the secrets in it.

use std::ops::Range;

use bottle_contract::terminal::inert;
use bottle_scan::Scanner;

/// The maximum number of bytes of a line that are shown on each side of a finding.
const AROUND: usize = 60;

/// The maximum length of a line with an excerpt, in bytes. Of a longer line, a part of a secret could remain.
pub(crate) const LONGEST_LINE: usize = 64 << 10;

/// What replaces a secret.
const REDACTED: &[u8] = b"[redacted]";

/// Returns the part of `line` around the finding at `own`. Replaces the finding, the `others` in the line, and
/// everything in which `scanner` finds something, warnings too. `None` if the line is too long.
pub(crate) fn excerpt(
    line: &[u8],
    own: Range<usize>,
    others: impl IntoIterator<Item = Range<usize>>,
    scanner: &Scanner,
) -> Option<String> {
    if line.len() > LONGEST_LINE {
        return None;
    }
    let mut is_secret = vec![false; line.len()];
    let report = scanner.scan(line);
    if report.more {
        return None;
    }
    let found = report.findings.iter().map(|finding| finding.span.within(line.len()));
    for range in others.into_iter().chain([own.clone()]).chain(found) {
        let range = whole_word(line, range);
        is_secret.get_mut(range)?.fill(true);
    }
    let begin = own.start.saturating_sub(AROUND).min(line.len());
    let end = own.end.saturating_add(AROUND).min(line.len());
    let mut text = Vec::new();
    for at in begin..end {
        if !is_secret[at] {
            text.push(line[at]);
        } else if at == begin || !is_secret[at - 1] {
            text.extend(REDACTED);
        }
    }
    let cut = |is_cut: bool| if is_cut { "…" } else { "" };
    let text = String::from_utf8_lossy(&text).replace(['\n', '\r', '\t'], " ");
    Some(format!("{}{}{}", cut(begin > 0), inert(text.trim()), cut(end < line.len())))
}

/// Extends a range to the letters of a credential beside it, because a rule may match only a part of one.
fn whole_word(line: &[u8], range: Range<usize>) -> Range<usize> {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"+/_-.~%".contains(byte);
    let (start, end) =
        (range.start.min(line.len()), range.end.min(line.len()).max(range.start.min(line.len())));
    let before = line[..start].iter().rev().take_while(|byte| is_part(byte)).count();
    let after = line[end..].iter().take_while(|byte| is_part(byte) || **byte == b'=').count();
    start - before..end + after
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bottle_contract::secret::Secret;
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
