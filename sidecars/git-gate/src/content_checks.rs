//! Checks files for contents that affect other programs: Git LFS pointers, and stray carriage returns in `.gitmodules`.

/// The current name and the two older names of Git LFS. Every Git LFS pointer contains one of these names (git-lfs,
/// `lfs/pointer.go`, `matcherRE`).
const LFS: [&str; 3] = ["git-lfs", "git-media", "hawser"];

/// Returns whether a file that begins with `begin` is a Git LFS pointer. Git LFS ignores blanks and empty lines around
/// the pointer.
pub(crate) fn is_lfs_pointer(begin: &[u8]) -> bool {
    let text = String::from_utf8_lossy(begin);
    let text = text.trim_start_matches(|letter: char| letter.is_whitespace() || letter == '\u{feff}');
    let line = text.lines().next().unwrap_or_default();
    let is_version = line.strip_prefix("version").is_some_and(|rest| rest.starts_with([' ', '\t']));
    is_version && LFS.iter().any(|word| line.contains(word))
}

/// Finds carriage returns that are not part of a line end (CR LF). If the path of a submodule ends with a carriage
/// return, git writes the path to its configuration without the carriage return. Older versions of git then check the
/// submodule out at the wrong path (CVE-2025-48384).
#[derive(Debug, Default)]
pub(crate) struct StrayReturns {
    pending: bool,
    found: bool,
}

impl StrayReturns {
    pub(crate) fn feed(&mut self, piece: &[u8]) {
        for &byte in piece {
            self.found |= self.pending && byte != b'\n';
            self.pending = byte == b'\r';
        }
    }

    /// Returns whether the complete text contains a carriage return that is not part of a line end.
    pub(crate) fn found(&self) -> bool {
        self.found || self.pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recognises_pointers_of_git_lfs_in_every_spelling() {
        for (text, pointer) in [
            ("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", true),
            ("version https://hawser.github.com/spec/v1\noid sha256:0\nsize 1\n", true),
            ("version http://git-media.io/v/2\noid sha256:0\nsize 1\n", true),
            ("\n\n  version https://git-lfs.github.com/spec/v1\r\n", true),
            ("\u{a0}\u{85}version https://git-lfs.github.com/spec/v1\n", true),
            ("\u{feff}version https://git-lfs.github.com/spec/v1\n", true),
            ("version 2 of the text\nwith git-lfs", false),
            ("about git-lfs\nversion https://git-lfs.github.com/spec/v1\n", false),
            ("versions of git-lfs", false),
            ("", false),
        ] {
            assert_eq!(is_lfs_pointer(text.as_bytes()), pointer, "{text:?}");
        }
    }

    #[test]
    fn finds_returns_within_lines() {
        for (text, found) in [
            ("path = a\n", false),
            ("path = a\r\npath = b\r\n", false),
            ("path = \"a\r\"\n", true),
            ("path = a\r\r\n", true),
            ("path = a\r", true),
            ("path = a\rb\n", true),
        ] {
            for size in [1, 2, 100] {
                let mut returns = StrayReturns::default();
                text.as_bytes().chunks(size).for_each(|piece| returns.feed(piece));
                assert_eq!(returns.found(), found, "{text:?} in {size}");
            }
        }
    }
}
