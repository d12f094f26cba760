//! Parses the syntax of a git configuration file (git-config(1), "SYNTAX") as data: no file is included, no value is
//! expanded, and no setting takes effect.

use std::sync::Arc;

/// The entries of a configuration file, in their order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Config {
    entries: Vec<Entry>,
}

/// One variable of a configuration file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The name of the section, in lower case. All variables of a section share this name, so a long name is stored
    /// only once in memory.
    pub section: Arc<[u8]>,
    /// The name of the subsection. Its case matters.
    pub subsection: Option<Arc<[u8]>>,
    /// The name of the variable, in lower case.
    pub name: Vec<u8>,
    /// The value. `None` for a variable without `=`, which means true.
    pub value: Option<Vec<u8>>,
}

impl Config {
    /// Parses a configuration file. `None` if the file is malformed, so that git would refuse it too.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        let mut parser = Parser { rest: text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text) };
        let mut section = None;
        let mut entries = Vec::new();
        while let Some(next) = parser.peek() {
            match next {
                b'\n' | b'\r' | b' ' | b'\t' => parser.skip(),
                b'#' | b';' => parser.comment(),
                b'[' => section = Some(parser.section()?),
                _ => {
                    let (section, subsection) = section.clone()?;
                    let (name, value) = parser.variable()?;
                    entries.push(Entry { section, subsection, name, value });
                }
            }
        }
        Some(Self { entries })
    }

    /// Returns the last value of a variable in a section without a subsection. `section` and `name` are in lower case.
    #[must_use]
    pub fn last(&self, section: &str, name: &str) -> Option<&[u8]> {
        let is_it = |entry: &&Entry| {
            entry.subsection.is_none()
                && *entry.section == *section.as_bytes()
                && entry.name == name.as_bytes()
        };
        self.entries.iter().rfind(is_it)?.value.as_deref()
    }

    /// Creates a configuration with these entries.
    #[must_use]
    pub fn of(entries: Vec<Entry>) -> Self {
        Self { entries }
    }

    /// Returns all entries, in their order.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }
}

/// The names of a section and its subsection.
type Section = (Arc<[u8]>, Option<Arc<[u8]>>);

/// Whether git reads this value as true. A variable without a value is true.
pub(crate) fn is_true(value: Option<&[u8]>) -> bool {
    let Some(value) = value else { return true };
    match value.to_ascii_lowercase().as_slice() {
        b"true" | b"yes" | b"on" => true,
        number => {
            let number = std::str::from_utf8(number).ok().and_then(|number| number.parse::<i64>().ok());
            number.is_some_and(|number| number != 0)
        }
    }
}

struct Parser<'a> {
    rest: &'a [u8],
}

impl Parser<'_> {
    fn peek(&self) -> Option<u8> {
        self.rest.first().copied()
    }

    fn skip(&mut self) {
        self.rest = self.rest.get(1..).unwrap_or_default();
    }

    /// Returns the next byte. A line end `\r\n` is returned as `\n`.
    fn next(&mut self) -> Option<u8> {
        if self.rest.starts_with(b"\r\n") {
            self.skip();
        }
        let next = self.peek();
        self.skip();
        next
    }

    fn comment(&mut self) {
        while self.next().is_some_and(|byte| byte != b'\n') {}
    }

    fn blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t')) {
            self.skip();
        }
    }

    /// Parses the header of a section: `[remote "origin"]`, or in the older form `[remote.origin]`.
    fn section(&mut self) -> Option<Section> {
        self.skip();
        let mut name = Vec::new();
        loop {
            match self.next()? {
                b']' => break,
                b' ' | b'\t' => return Some((name.into(), Some(self.subsection()?.into()))),
                byte if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.') => {
                    name.push(byte.to_ascii_lowercase());
                }
                _ => return None,
            }
        }
        let Some(dot) = name.iter().position(|byte| *byte == b'.') else { return Some((name.into(), None)) };
        let subsection = name.split_off(dot + 1);
        let _ = name.pop();
        Some((name.into(), Some(subsection.into())))
    }

    fn subsection(&mut self) -> Option<Vec<u8>> {
        self.blanks();
        let mut found = Vec::new();
        (self.next()? == b'"').then_some(())?;
        loop {
            match self.next()? {
                b'"' => break,
                b'\n' | 0 => return None,
                b'\\' => found.push(self.next().filter(|byte| *byte != b'\n')?),
                byte => found.push(byte),
            }
        }
        (self.next()? == b']').then_some(found)
    }

    fn variable(&mut self) -> Option<(Vec<u8>, Option<Vec<u8>>)> {
        let mut name = Vec::new();
        while let Some(byte) = self.peek().filter(|byte| byte.is_ascii_alphanumeric() || *byte == b'-') {
            name.push(byte.to_ascii_lowercase());
            self.skip();
        }
        name.first().filter(|byte| byte.is_ascii_alphabetic())?;
        self.blanks();
        match self.next() {
            None | Some(b'\n') => Some((name, None)),
            Some(b'=') => Some((name, Some(self.value()?))),
            Some(_) => None,
        }
    }

    /// The value after `=`, to the end of the line. Unquoted blanks at the start and at the end are removed.
    fn value(&mut self) -> Option<Vec<u8>> {
        self.blanks();
        let (mut value, mut end, mut quoted) = (Vec::new(), 0, false);
        loop {
            match self.next() {
                None | Some(b'\n') if quoted => return None,
                None | Some(b'\n') => break,
                Some(0) => return None,
                Some(b'"') => {
                    quoted = !quoted;
                    end = value.len();
                    continue;
                }
                Some(b'#' | b';') if !quoted => {
                    self.comment();
                    break;
                }
                Some(b'\\') => match self.next()? {
                    b'\n' => continue,
                    b'n' => value.push(b'\n'),
                    b't' => value.push(b'\t'),
                    b'b' => value.push(8),
                    byte @ (b'\\' | b'"') => value.push(byte),
                    _ => return None,
                },
                Some(byte @ (b' ' | b'\t')) if !quoted => {
                    value.push(byte);
                    continue;
                }
                Some(byte) => value.push(byte),
            }
            end = value.len();
        }
        value.truncate(end);
        Some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(text: &str) -> Option<Vec<String>> {
        let text_of = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let shown = |entry: &Entry| {
            let subsection = entry.subsection.as_deref().map(|name| format!(".{}", text_of(name)));
            let value = entry.value.as_deref().map(|value| format!("={}", text_of(value)));
            format!(
                "{}{}.{}{}",
                text_of(&entry.section),
                subsection.unwrap_or_default(),
                text_of(&entry.name),
                value.unwrap_or_default()
            )
        };
        Some(Config::parse(text.as_bytes())?.entries().iter().map(shown).collect())
    }

    #[test]
    fn reads_what_git_reads() {
        for (text, expected) in [
            ("", &[][..]),
            (
                "[core]\n\tbare = false\n\tWorkTree=../x y  # note\n",
                &["core.bare=false", "core.worktree=../x y"],
            ),
            ("[core] bare\r\n[a]b=c\r\n", &["core.bare", "a.b=c"]),
            ("[remote \"O.r\\\"i\"]\nurl = \"a;b # \" c ; d", &["remote.O.r\"i.url=a;b #  c"]),
            ("[Remote.Origin]\nurl=\n", &["remote.origin.url="]),
            ("[a]\nb = c \\\n  d\\tt\n", &["a.b=c   d\tt"]),
            ("\u{feff}; note\n[a]\n# note\nb = 'x'\n", &["a.b='x'"]),
        ] {
            assert_eq!(
                shown(text).as_deref(),
                Some(&expected.iter().map(ToString::to_string).collect::<Vec<_>>()[..]),
                "{text:?}"
            );
        }
        for text in [
            "a = b",
            "[a",
            "[a]\n1 = 2",
            "[a]\nb = \"c\n",
            "[a \"b]\n",
            "[a]\nb = \\x\n",
            "[a]\nb c",
            "[a_b]\n",
        ] {
            assert_eq!(shown(text), None, "{text:?}");
        }
    }

    /// If each variable had its own copy of the section's name, a name of 300 KB and 300,000 variables in its section
    /// would need 90 GB.
    #[test]
    fn variables_share_the_names_of_their_section() {
        let long = "x".repeat(300 << 10);
        for header in [format!("[a \"{long}\"]\n"), format!("[{long}]\n"), format!("[a.{long}]\n")] {
            let text = header + &"b\n".repeat(300 << 10);
            let config = Config::parse(text.as_bytes()).expect("parsed");
            assert_eq!(config.entries().len(), 300 << 10);
        }
    }

    #[test]
    fn the_last_value_counts() {
        let config =
            Config::parse(b"[core]\nworktree = a\n[core \"x\"]\nworktree = c\n[CORE]\nworktree = b\n");
        let config = config.expect("parsed");
        assert_eq!(config.last("core", "worktree"), Some(&b"b"[..]));
        assert_eq!(config.last("core", "bare"), None);
    }
}
