//! Reads `.dockerignore`, which excludes files of a directory from a build context. The module has no side effects.

use globset::{GlobBuilder, GlobMatcher};

/// The patterns of a `.dockerignore`, in the order of the file. The last pattern that matches a path decides.
#[derive(Debug, Clone, Default)]
pub(super) struct Ignored(Vec<(GlobMatcher, bool)>);

impl Ignored {
    /// Parses the file. A line that begins with `#` is a comment. A pattern after `!` includes matching paths again.
    ///
    /// # Errors
    /// The number, from 1, of a line that is not a valid pattern.
    pub(super) fn parse(text: &str) -> Result<Self, usize> {
        let mut patterns = Vec::new();
        for (index, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
            if line.starts_with('#') {
                continue;
            }
            let (pattern, taken_back) = match line.trim().strip_prefix('!') {
                Some(pattern) => (pattern.trim(), true),
                None => (line.trim(), false),
            };
            let pattern = clean(pattern);
            if pattern.is_empty() {
                continue;
            }
            // Braces have a special meaning in the crate `globset`, but not in the file.
            let glob = GlobBuilder::new(&pattern.replace('{', "[{]").replace('}', "[}]"))
                .literal_separator(true)
                .backslash_escape(true)
                .build()
                .map_err(|_| index + 1)?;
            patterns.push((glob.compile_matcher(), taken_back));
        }
        Ok(Self(patterns))
    }

    /// Whether the file or directory at this path, relative to the context, is excluded. A pattern that matches a
    /// directory also matches everything below it.
    pub(super) fn is_ignored(&self, path: &str) -> bool {
        let prefixes = || path.match_indices('/').map(|(at, _)| &path[..at]).chain([path]);
        let last = self.0.iter().rev().find(|(glob, _)| prefixes().any(|prefix| glob.is_match(prefix)));
        last.is_some_and(|(_, taken_back)| !taken_back)
    }

    /// Whether an excluded directory may contain paths that a pattern includes again.
    pub(super) fn takes_back(&self) -> bool {
        self.0.iter().any(|(_, taken_back)| *taken_back)
    }
}

/// Removes slashes at both ends, and the parts `.` and `..`.
fn clean(pattern: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in pattern.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_matching_pattern_decides() {
        let cases: [(&str, &[&str], &[&str]); 9] = [
            ("", &[], &["a"]),
            ("# a\n\n a \n", &["a", "a/b"], &["b", "b/a"]),
            ("/a/\n./b/../c", &["a/x", "c"], &["b"]),
            ("*.log", &["x.log", ".log"], &["a/x.log"]),
            ("**/*.log\n!keep.log", &["x.log", "a/b/x.log"], &["keep.log"]),
            ("a/**", &["a/b", "a/b/c"], &["b"]),
            ("*\n!src", &["a", "a/b"], &["src", "src/a/b"]),
            ("!src\n*", &["src", "a"], &[]),
            ("a{b,c}\n[x-z]?\n\\*", &["a{b,c}", "y1", "*"], &["ab", "a1", "yy1"]),
        ];
        for (text, out, inside) in cases {
            let ignored = Ignored::parse(text).expect("patterns");
            for path in out {
                assert!(ignored.is_ignored(path), "{text:?} {path}");
            }
            for path in inside {
                assert!(!ignored.is_ignored(path), "{text:?} {path}");
            }
        }
        assert_eq!(Ignored::parse("a\n[\n").err(), Some(2));
    }
}
