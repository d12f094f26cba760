//! The value of a word, as far as it is known before the command runs.

/// Represents a part that is known only when the command runs. The part may be empty.
pub(crate) const UNKNOWN: char = '\u{FFFD}';
/// Represents a part that is known only when the command runs. The part is not empty.
pub(crate) const SOMETHING: char = '\u{FFFC}';
/// Represents a whole number that is known only when the command runs, such as the value of `$?`.
pub(crate) const NUMBER: char = '\u{FFFB}';

/// The value of a word. [`UNKNOWN`], [`SOMETHING`] and [`NUMBER`] represent unknown parts. A `~` at the start represents the user's
/// home directory. If a quoted `~` is at the start, the value begins with `./~`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Text {
    /// The value, with its unknown parts.
    pub(crate) value: String,
    /// Whether the value contains an unquoted file name pattern.
    pub(crate) globs: bool,
    /// Whether the value begins with an unquoted file name pattern. A matching file name can then be an option.
    pub(crate) begins_with_glob: bool,
    /// Whether `value` is an approximation, as after `${NAME%suffix}`.
    pub(crate) is_approximate: bool,
    /// Whether the shell may split the word into several words, because an unknown part is not quoted.
    pub(crate) may_split: bool,
    /// Whether a part of the value was downloaded.
    pub(crate) is_downloaded: bool,
    /// Whether a part of the value was decoded or scrambled.
    pub(crate) is_decoded: bool,
}

impl Text {
    /// Creates a text with a known value.
    pub(crate) fn known(value: &str) -> Self {
        Self { value: value.to_owned(), ..Self::default() }
    }

    /// Creates a text with a completely unknown value.
    pub(crate) fn unknown() -> Self {
        Self::known(&UNKNOWN.to_string())
    }

    /// Whether each part of the value is known.
    pub(crate) fn is_known(&self) -> bool {
        self.is_fixed() && !self.value.contains(NUMBER)
    }

    /// Whether each part of the value is known or a number. A number is never an option that writes or runs something.
    pub(crate) fn is_fixed(&self) -> bool {
        !self.is_approximate && !self.value.contains([UNKNOWN, SOMETHING])
    }

    /// Whether the value is a whole number.
    pub(crate) fn is_number(&self) -> bool {
        let digits = self.value.strip_prefix('-').unwrap_or(&self.value);
        let is_digit = |at: char| at.is_ascii_digit() || at == NUMBER;
        !self.is_approximate && !digits.is_empty() && digits.chars().all(is_digit)
    }

    /// Whether no part of the value is known, so that it may be any text.
    pub(crate) fn is_unknown(&self) -> bool {
        !self.value.is_empty() && self.value.chars().all(|at| matches!(at, UNKNOWN | SOMETHING | NUMBER))
    }

    /// The value without the unknown parts that may be empty.
    pub(crate) fn when_empty(&self) -> String {
        self.value.replace(UNKNOWN, "")
    }

    /// The name of the program if this text is the first word of a command. The name has no directories, and is in
    /// lower case because the file systems of some hosts ignore case.
    pub(crate) fn program(&self) -> String {
        let name = self.value.trim_end_matches('/').rsplit('/').next().unwrap_or_default();
        name.to_ascii_lowercase()
    }

    /// Takes over the uncertainty of `part`, because `part` becomes a part of this text.
    pub(crate) fn taint(&mut self, part: &Self) {
        self.globs |= part.globs;
        self.is_approximate |= part.is_approximate;
        self.may_split |= part.may_split;
        self.is_downloaded |= part.is_downloaded;
        self.is_decoded |= part.is_decoded;
    }

    /// The words joined by spaces.
    pub(crate) fn joined(words: &[Self]) -> Self {
        let value = words.iter().map(|word| word.value.as_str()).collect::<Vec<_>>().join(" ");
        let begins_with_glob = words.first().is_some_and(|word| word.begins_with_glob);
        let mut joined = Self { value, begins_with_glob, ..Self::default() };
        words.iter().for_each(|word| joined.taint(word));
        joined
    }

    /// The value of an option, if the text is `name=value`.
    pub(crate) fn after(&self, name: &str) -> Option<Self> {
        let value = self.value.strip_prefix(name)?.strip_prefix('=')?.to_owned();
        Some(Self { value, ..self.clone() })
    }
}

/// Expands the braces of a word before anything else, as bash does: `a{b,c}d` is `abd acd`. Returns the word itself if
/// it has no braces. The result has at most `limit` words. Further braces are not expanded.
pub(crate) fn braces(word: &str, limit: usize) -> Vec<String> {
    let mut done = Vec::new();
    let mut open = vec![word.to_owned()];
    while let Some(next) = open.pop() {
        match first_brace(&next) {
            Some((start, end, parts)) if open.len() + done.len() + parts.len() <= limit => {
                let (before, after) = (&next[..start], &next[end..]);
                open.extend(parts.iter().rev().map(|part| format!("{before}{part}{after}")));
            }
            _ => done.push(next),
        }
    }
    done
}

/// The first brace expression with a comma: its range, and its parts.
fn first_brace(word: &str) -> Option<(usize, usize, Vec<&str>)> {
    let bytes = word.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 1,
            quote @ (b'\'' | b'"' | b'`') => {
                at += bytes[at + 1..].iter().position(|byte| *byte == quote)? + 1
            }
            // Skips a parameter expansion or a command substitution.
            b'$' if matches!(bytes.get(at + 1), Some(b'{' | b'(')) => at = closing(bytes, at + 1)?,
            b'{' => {
                if let Some((end, parts)) = brace_parts(word, at) {
                    return Some((at, end, parts));
                }
            }
            _ => {}
        }
        at += 1;
    }
    None
}

/// The index of the bracket that closes the bracket at `open`.
fn closing(bytes: &[u8], open: usize) -> Option<usize> {
    let mut depth = 0_usize;
    for (index, byte) in bytes.iter().enumerate().skip(open) {
        match byte {
            b'{' | b'(' => depth += 1,
            b'}' | b')' => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(index);
                }
            }
            _ => {}
        }
    }
    None
}

/// The end of the brace expression that opens at `open`, and its parts, if the expression has a comma.
fn brace_parts(word: &str, open: usize) -> Option<(usize, Vec<&str>)> {
    let bytes = word.as_bytes();
    let close = closing(bytes, open)?;
    let mut parts = Vec::new();
    let (mut depth, mut from) = (0_usize, open + 1);
    for index in open + 1..close {
        match bytes[index] {
            b'{' | b'(' => depth += 1,
            b'}' | b')' => depth = depth.saturating_sub(1),
            b',' if depth == 0 => {
                parts.push(&word[from..index]);
                from = index + 1;
            }
            _ => {}
        }
    }
    if parts.is_empty() {
        return None;
    }
    parts.push(&word[from..close]);
    Some((close + 1, parts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn braces_are_expanded_as_bash_does() {
        for (word, expanded) in [
            ("plain", vec!["plain"]),
            ("/{etc,usr}", vec!["/etc", "/usr"]),
            ("a{b,c{d,e}}f", vec!["abf", "acdf", "acef"]),
            ("{a,b}{c,d}", vec!["ac", "ad", "bc", "bd"]),
            ("'{a,b}'", vec!["'{a,b}'"]),
            ("\\{a,b}", vec!["\\{a,b}"]),
            ("${X:-a,b}", vec!["${X:-a,b}"]),
            ("$(x {a,b})", vec!["$(x {a,b})"]),
            ("{single}", vec!["{single}"]),
            ("{,x}", vec!["", "x"]),
            ("{open,", vec!["{open,"]),
        ] {
            assert_eq!(braces(word, 64), expanded, "{word}");
        }
    }

    #[test]
    fn braces_never_grow_beyond_the_limit() {
        let word = "{a,b}".repeat(40);
        assert!(braces(&word, 64).len() <= 64);
    }

    proptest::proptest! {
        #[test]
        fn no_word_panics(word in "[{},()$'\"`\\\\aé ]{0,40}") {
            assert!(braces(&word, 64).len() <= 64);
        }
    }
}
