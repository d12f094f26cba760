//! Translates regular expressions from the syntax of Go (RE2) to that of the `regex` crate.
//!
//! The two syntaxes differ in few places. Go reads a `{` that does not begin a repetition as a literal character. In a
//! bracketed character class, Go reads `[`, `&&`, `--` and `~~` literally, and also a `-` after a class such as `\w`.
//! Go supports `\Q…\E` and octal escapes. In Go, `\<` is the literal character `<`. Source:
//! <https://pkg.go.dev/regexp/syntax>.

use std::sync::OnceLock;

use regex::bytes::{Captures, Regex, RegexBuilder};

/// The maximum memory of one compiled regular expression, in bytes.
const MAX_COMPILED: usize = 4 << 20;
/// The maximum memory for the lazy DFA of one regular expression, in bytes.
const MAX_STATES: usize = 512 << 10;

/// A regular expression that was written in Go's syntax. The compiled form is built for the first text that is matched
/// against it, because most rules of a file never run.
pub(crate) struct Pattern {
    text: String,
    groups: usize,
    regex: OnceLock<Option<Regex>>,
}

impl Pattern {
    /// Translates and checks an expression.
    ///
    /// # Errors
    /// Returns the error message of the regex compiler.
    pub(crate) fn new(pattern: &str) -> Result<Self, String> {
        let text = translate(pattern);
        let regex = compile(&text).map_err(|error| {
            // The last line of the message gives the cause. The earlier lines show the position of the error.
            error.to_string().lines().last().unwrap_or_default().replacen("error: ", "", 1)
        })?;
        Ok(Self { text, groups: regex.captures_len(), regex: OnceLock::new() })
    }

    /// Checks a list of expressions, and joins them into one pattern that matches if any of the expressions matches.
    /// Returns `None` if the list is empty.
    ///
    /// # Errors
    /// Returns the first invalid expression and the error message of the regex compiler.
    pub(crate) fn any_of(patterns: &[String]) -> Result<Option<Self>, (String, String)> {
        for pattern in patterns {
            compile(&translate(pattern)).map_err(|error| {
                let cause = error.to_string();
                (pattern.clone(), cause.lines().last().unwrap_or_default().replacen("error: ", "", 1))
            })?;
        }
        if patterns.is_empty() {
            return Ok(None);
        }
        let joined: Vec<String> = patterns.iter().map(|pattern| format!("(?:{pattern})")).collect();
        Self::new(&joined.join("|")).map(Some).map_err(|error| (joined.join("|"), error))
    }

    /// Returns the number of capture groups. The complete match counts as one group.
    pub(crate) fn groups(&self) -> usize {
        self.groups
    }

    pub(crate) fn is_match(&self, text: &[u8]) -> bool {
        self.regex().is_some_and(|regex| regex.is_match(text))
    }

    pub(crate) fn matches<'t>(&self, text: &'t [u8]) -> impl Iterator<Item = Captures<'t>> {
        self.regex().into_iter().flat_map(move |regex| regex.captures_iter(text))
    }

    fn regex(&self) -> Option<&Regex> {
        self.regex.get_or_init(|| compile(&self.text).ok()).as_ref()
    }
}

fn compile(text: &str) -> Result<Regex, regex::Error> {
    let build = |unicode| {
        let mut builder = RegexBuilder::new(text);
        builder.unicode(unicode).size_limit(MAX_COMPILED).dfa_size_limit(MAX_STATES).build()
    };
    // Character classes such as `\w` match only ASCII in Go, and compile to far smaller programs without Unicode
    // support. An expression with non-ASCII letters is compiled with Unicode support.
    build(false).or_else(|_| build(true))
}

/// Translates an expression. An invalid expression stays invalid.
pub(crate) fn translate(pattern: &str) -> String {
    let mut out = String::with_capacity(pattern.len() + 16);
    let mut rest = pattern;
    while let Some(letter) = rest.chars().next() {
        let length = match letter {
            '\\' => escape(rest, &mut out),
            '[' => class(rest, &mut out),
            '{' if !is_repetition(rest) => {
                out.push_str(r"\{");
                1
            }
            _ => {
                out.push(letter);
                letter.len_utf8()
            }
        };
        rest = &rest[length..];
    }
    out
}

/// Returns whether a text begins with `{n}`, `{n,}` or `{n,m}`.
fn is_repetition(text: &str) -> bool {
    let Some((inside, _)) = text[1..].split_once('}') else { return false };
    let (least, most) = inside.split_once(',').unwrap_or((inside, ""));
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    !least.is_empty() && digits(least) && digits(most)
}

/// Translates the escape at the start of `text`, and returns its length.
fn escape(text: &str, out: &mut String) -> usize {
    let Some(next) = text[1..].chars().next() else {
        out.push('\\');
        return 1;
    };
    match next {
        'Q' => {
            let inside = &text[2..];
            let (literal, length) = inside
                .split_once(r"\E")
                .map_or((inside, text.len()), |(literal, _)| (literal, literal.len() + 4));
            out.push_str(&regex::escape(literal));
            length
        }
        'x' | 'p' | 'P' if text[2..].starts_with('{') => {
            let length = text.find('}').map_or(text.len(), |at| at + 1);
            out.push_str(&text[..length]);
            length
        }
        '0'..='7' => {
            let digits = text[1..].bytes().take(3).take_while(|byte| (b'0'..b'8').contains(byte)).count();
            match u32::from_str_radix(&text[1..=digits], 8) {
                // An escape with a single digit is a backreference, which neither syntax supports.
                Ok(number) if digits > 1 || next == '0' => out.push_str(&format!(r"\x{{{number:x}}}")),
                _ => out.push_str(&text[..=digits]),
            }
            1 + digits
        }
        _ if next.is_ascii() && !next.is_ascii_alphanumeric() => {
            out.push_str(&regex::escape(next.encode_utf8(&mut [0; 4])));
            2
        }
        _ => {
            out.push('\\');
            out.push(next);
            1 + next.len_utf8()
        }
    }
}

/// Translates the bracketed character class at the start of `text`, and returns its length. A class without a closing
/// bracket is copied unchanged, so that the expression does not compile.
fn class(text: &str, out: &mut String) -> usize {
    let mut made = String::from("[");
    let mut at = 1;
    if text[at..].starts_with('^') {
        made.push('^');
        at += 1;
    }
    let mut first = true;
    loop {
        let rest = &text[at..];
        if rest.is_empty() {
            out.push_str(text);
            return text.len();
        }
        if rest.starts_with(']') && !first {
            made.push(']');
            out.push_str(&made);
            return at + 1;
        }
        first = false;
        let (length, is_letter) = class_item(rest, &mut made);
        at += length;
        let rest = &text[at..];
        if is_letter && rest.len() > 1 && rest.starts_with('-') && !rest.starts_with("-]") {
            made.push('-');
            at += 1 + class_item(&rest[1..], &mut made).0;
        }
    }
}

/// Translates one item of a bracketed character class. Returns the length of the item, and whether the item is a single
/// character, which may begin a range.
fn class_item(text: &str, out: &mut String) -> (usize, bool) {
    if text.starts_with("[:")
        && let Some(end) = text.find(":]")
    {
        out.push_str(&text[..end + 2]);
        return (end + 2, false);
    }
    let Some(letter) = text.chars().next() else { return (0, false) };
    if letter == '\\' {
        let is_set = text[1..].starts_with(['d', 'D', 's', 'S', 'w', 'W', 'p', 'P']);
        if !text[1..].starts_with(|next: char| next.is_ascii() && !next.is_ascii_alphanumeric()) {
            return (escape(text, out), !is_set);
        }
        let length = class_item_letter(text[1..].chars().next(), out);
        return (1 + length, true);
    }
    (class_item_letter(Some(letter), out), true)
}

fn class_item_letter(letter: Option<char>, out: &mut String) -> usize {
    let Some(letter) = letter else { return 0 };
    if r"[]^-&~\".contains(letter) {
        out.push('\\');
    }
    out.push(letter);
    letter.len_utf8()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn spellings_of_go_match_what_go_matches() {
        for (pattern, matching, other) in [
            (r"^\$(?:\d+|{\d+})$", "${12}", "$12}"),
            (r"^\${(?:[A-Z_]+|[a-z_]+)}$", "${NAME}", "$NAME"),
            (r"^{{[ \t]*[\w.]+[ \t]*}}$", "{{ a.b }}", "{ a.b }"),
            (r"^a{,3}$", "a{,3}", "aaa"),
            (r"^a{2,3}$", "aaa", "a{2,3}"),
            (r"^[\w-.]+$", "a-b.c", "a b"),
            (r"^[[a]+$", "[a[", "b"),
            (r"^[a&&b]+$", "a&b", "c"),
            (r"^[+--]+$", "+,-", "."),
            (r"^[a~~]+$", "a~", "b"),
            (r"^[]a]+$", "]a", "b"),
            (r"^[^]a]+$", "bc", "]"),
            (r"^[[:alpha:]_]+$", "ab_", "1"),
            (r"^[\]\-\[]+$", "]-[", "a"),
            (r"^[a-]+$", "a-", "b"),
            (r"^\<a\>$", "<a>", "a"),
            (r"^\Qa.b{\E.$", "a.b{c", "axb{c"),
            (r"^\101\x{42}\x43$", "ABC", "abc"),
            (r"^[\x41-\x43\d]+$", "AB1", "D"),
            (r"^[\x60'\x22]$", "`", "a"),
            (r"^\/\_\ \@$", "/_ @", "a"),
            (r"^(?P<name>a)(?<other>b)$", "ab", "ba"),
            (r"^(?i:ab)(?U)c+$", "ABc", "ABC"),
            (r"^\pL\p{Greek}$", "aω", "1ω"),
            (r"^[\w .-/]+$", "a b./", "a;b"),
        ] {
            let compiled = Pattern::new(pattern).unwrap_or_else(|error| panic!("{pattern}: {error}"));
            assert!(compiled.is_match(matching.as_bytes()), "{pattern} {matching}");
            assert!(!compiled.is_match(other.as_bytes()), "{pattern} {other}");
        }
        for pattern in [r"a(?!b)", "[a", r"(a)\1", "a)", "*", "[z-a]", r"\", "(?:[a-z]{900}){900}"] {
            assert!(Pattern::new(pattern).is_err(), "{pattern}");
        }
    }

    proptest! {
        #[test]
        fn no_expression_panics(pattern in "[\\\\\\[\\]{}^\\-&~QEx0-9a-c:|,é]{0,40}") {
            let _ = translate(&pattern);
        }

        #[test]
        fn an_expression_without_special_signs_stays(pattern in "[a-z0-9.|()+?*$^]{0,40}") {
            prop_assert_eq!(translate(&pattern), pattern);
        }
    }
}
