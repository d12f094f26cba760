//! Text that does nothing.

/// Escapes everything in foreign text that would act or mislead where it is shown: control characters
/// except line breaks and tabs, and characters that are invisible or turn the reading direction. What
/// remains reads as it was written.
#[must_use]
pub fn inert(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' | '\t' => shown.push(c),
            c if c.is_control() || misleads(c) => shown.extend(c.escape_default()),
            c => shown.push(c),
        }
    }
    shown
}

/// Zero-width, bidirectional and tag characters, line separators, soft hyphen: what makes two different
/// texts look the same.
fn misleads(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{61c}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}'
        | '\u{180b}'..='\u{180f}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{3164}' | '\u{feff}' | '\u{ffa0}' | '\u{fff9}'..='\u{fffb}'
        | '\u{e0000}'..='\u{e0fff}')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn controls_and_disguises_are_spelled_out_and_words_stay() {
        let text = "a\x1b[8mb\u{9b}2J\rc\n\tdé✓";
        assert_eq!(inert(text), "a\\u{1b}[8mb\\u{9b}2J\\rc\n\tdé✓");
        assert_eq!(inert("pay \u{202e}xat\u{202c}\u{200b}"), "pay \\u{202e}xat\\u{202c}\\u{200b}");
    }

    proptest! {
        #[test]
        fn nothing_that_acts_survives_and_twice_is_once(text in any::<String>()) {
            let shown = inert(&text);
            prop_assert!(shown.chars().all(|c| c == '\n' || c == '\t' || !(c.is_control() || misleads(c))));
            prop_assert_eq!(inert(&shown), shown);
        }
    }
}
