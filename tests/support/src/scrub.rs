//! Replaces values that differ between runs, so that outputs can be compared.

use std::path::Path;

use anyhow::{Context, Result};
use regex::Regex;

/// Replacements, which are applied in order.
#[derive(Debug, Clone, Default)]
pub struct Scrub {
    filters: Vec<(Regex, String)>,
}

impl Scrub {
    /// Returns the replacements that apply to every output: times, durations, process ids, ports, memory
    /// addresses, ids.
    ///
    /// # Errors
    /// Never fails, because the built-in expressions are valid.
    pub fn standard() -> Result<Self> {
        let mut scrub = Self::default();
        for (expression, word) in [
            // Escape sequences for colours. The text of a terminal's screen contains none.
            (r"\x1b\[[0-9;]*m", ""),
            (r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:?\d\d)?", "[TIME]"),
            (r"\b\d{8}-\d{6}-\d{6}\b", "[REFERENCE]"),
            (r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b", "[UUID]"),
            (r"\b[0-9a-f]{64}\b", "[SHA256]"),
            (r"\b[0-9a-f]{40}\b", "[SHA1]"),
            (r"(?m)^index [0-9a-f]{7,}\.\.[0-9a-f]{7,}", "index [BLOBS]"),
            (r"\b(pid|process) \d+", "$1 [PID]"),
            (r#"("[a-z_]*pid": ?)\d+"#, "$1[PID]"),
            (r"\b127\.0\.0\.1:\d{4,5}\b", "127.0.0.1:[PORT]"),
            (r"(<|\b)\d+(\.\d+)? ?(ns|µs|ms|s|min)\b", "[DURATION]"),
        ] {
            scrub.add(expression, word)?;
        }
        Ok(scrub)
    }

    /// Replaces every match of `expression` with `word`, in which `$1` is replaced by the first group.
    ///
    /// # Errors
    /// Returns an error if the expression is invalid.
    pub fn add(&mut self, expression: &str, word: &str) -> Result<&mut Self> {
        let regex = Regex::new(expression).with_context(|| format!("filter {expression:?}"))?;
        self.filters.push((regex, word.to_owned()));
        Ok(self)
    }

    /// Replaces the beginning of paths: `/tmp/x/home/a` → `[HOME]/a`. A longer path must be added before a path that is
    /// a prefix of it.
    ///
    /// # Errors
    /// Does not fail if the path is UTF-8.
    pub fn path(&mut self, path: &Path, word: &str) -> Result<&mut Self> {
        self.add(&regex::escape(&path.to_string_lossy()), word)
    }

    /// Replaces the random end of this agent's slugs: `probe-7k2qa` → `probe-[SLUG]`.
    ///
    /// # Errors
    /// Does not fail if the text is a valid agent name.
    pub fn agent(&mut self, agent: &str) -> Result<&mut Self> {
        self.add(&format!(r"\b{}-[a-z2-7]{{5}}\b", regex::escape(agent)), &format!("{agent}-[SLUG]"))
    }

    /// Returns the text after all replacements, without spaces at the ends of lines.
    #[must_use]
    pub fn apply(&self, text: &str) -> String {
        let replaced = self.filters.iter().fold(text.to_owned(), |text, (regex, word)| {
            regex.replace_all(&text, word.as_str()).into_owned()
        });
        let mut lines: Vec<&str> = replaced.lines().map(str::trim_end).collect();
        while lines.last().is_some_and(|line| line.is_empty()) {
            lines.pop();
        }
        lines.join("\n") + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replaces_varying_values_only() {
        let mut scrub = Scrub::standard().unwrap();
        scrub.path(Path::new("/tmp/b-1.x/home"), "[HOME]").unwrap().agent("probe").unwrap();
        for (text, expected) in [
            ("probe-7k2qa runs as pid 4711  ", "probe-[SLUG] runs as pid [PID]\n"),
            ("at 2026-11-21T02:35:00.123Z took 12.5 ms", "at [TIME] took [DURATION]\n"),
            ("/tmp/b-1.x/home/state on 127.0.0.1:40123", "[HOME]/state on 127.0.0.1:[PORT]\n"),
            ("/tmp/b-1_x/home", "/tmp/b-1_x/home\n"),
            ("\x1b[1;31mred\x1b[0m", "red\n"),
            (r#"{"keeper_pid": 12, "port": 9099}"#, "{\"keeper_pid\": [PID], \"port\": 9099}\n"),
        ] {
            assert_eq!(scrub.apply(text), expected);
        }
    }
}
