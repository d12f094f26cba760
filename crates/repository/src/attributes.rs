//! Reads git attributes (gitattributes(5)) as data, from files that an agent or a project wrote.
//!
//! An attribute file in a deeper directory overrides the files in the directories above it. The file `info/attributes`
//! of the repository overrides all other files. This module starts no program for an attribute: the caller decides what
//! a value means.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

/// The name of git's attribute files.
pub const ATTRIBUTES_FILE: &str = ".gitattributes";

/// The maximum size of an attribute file in bytes.
pub const MAX_ATTRIBUTES: usize = 1 << 20;

/// The maximum length of a line in bytes. Longer lines are ignored, as in git.
pub(crate) const MAX_LINE: usize = 2048;

/// The maximum number of patterns in all attribute files together.
const MAX_PATTERNS: usize = 5_000;

/// The maximum nesting of macros that expand to other macros.
const MAX_NESTING: usize = 8;

/// The state of an attribute for a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// The attribute is set: `name`.
    Set,
    /// The attribute is unset: `-name`.
    Unset,
    /// The attribute is unspecified: `!name`.
    Unspecified,
    /// The attribute has a value: `name=value`.
    Value(Vec<u8>),
}

/// Why the attributes of paths are unknown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the attribute files are larger than is read")]
pub struct TooManyAttributes;

/// The attributes of the paths of a working tree.
#[derive(Debug, Default)]
pub struct Attributes {
    /// The files. Each file overrides the files before it.
    files: Vec<File>,
    macros: HashMap<Vec<u8>, Vec<Assignment>>,
    patterns: usize,
}

/// The attributes of one path, without those that are unspecified.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PathAttributes {
    states: HashMap<Vec<u8>, State>,
}

type Assignment = (Vec<u8>, State);

#[derive(Debug)]
struct File {
    /// The path of the file's directory, with a slash at the end. Empty for the top of the working tree.
    base: Vec<u8>,
    globs: GlobSet,
    /// The assignments of each pattern of `globs`.
    lines: Vec<Vec<Assignment>>,
}

impl Attributes {
    /// Adds an attribute file, which overrides the files that were added before. `directory` is the path of the file's
    /// directory, relative to the top of the working tree. Only a file at the top can define macros.
    ///
    /// # Errors
    /// Returns [`TooManyAttributes`].
    pub fn add(&mut self, directory: &[u8], text: &[u8]) -> Result<(), TooManyAttributes> {
        if text.len() > MAX_ATTRIBUTES {
            return Err(TooManyAttributes);
        }
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        let (mut globs, mut lines) = (GlobSetBuilder::new(), Vec::new());
        for line in text.split(|byte| *byte == b'\n').filter(|line| line.len() <= MAX_LINE) {
            let Some((pattern, assignments)) = parse_line(line) else { continue };
            if let Some(name) = pattern.strip_prefix(b"[attr]") {
                if directory.is_empty() && is_name(name) {
                    self.macros.insert(name.to_owned(), assignments);
                }
                continue;
            }
            let Some(glob) = glob(&pattern) else { continue };
            self.patterns += 1;
            if self.patterns > MAX_PATTERNS {
                return Err(TooManyAttributes);
            }
            globs.add(glob);
            lines.push(assignments);
        }
        if lines.is_empty() {
            return Ok(());
        }
        let globs = globs.build().map_err(|_| TooManyAttributes)?;
        let base = if directory.is_empty() { Vec::new() } else { [directory, b"/"].concat() };
        self.files.push(File { base, globs, lines });
        Ok(())
    }

    /// Whether any file or macro assigns a value to this attribute.
    #[must_use]
    pub fn has_value(&self, name: &str) -> bool {
        let gives = |assignments: &Vec<Assignment>| {
            let is_it =
                |(found, state): &Assignment| found == name.as_bytes() && matches!(state, State::Value(_));
            assignments.iter().any(is_it)
        };
        self.files.iter().flat_map(|file| &file.lines).chain(self.macros.values()).any(gives)
    }

    /// Returns the attributes of the file at `path`, which is relative to the top of the working tree.
    #[must_use]
    pub fn of(&self, path: &[u8]) -> PathAttributes {
        let mut found = PathAttributes::default();
        for file in self.files.iter().rev() {
            let Some(below) = path.strip_prefix(&file.base[..]) else { continue };
            let below = Path::new(OsStr::from_bytes(below));
            for at in file.globs.matches(below).into_iter().rev() {
                self.assign(&mut found, &file.lines[at], MAX_NESTING);
            }
        }
        found.states.retain(|_, state| *state != State::Unspecified);
        found
    }

    /// Sets the attributes that do not have a state yet. If an attribute is assigned more than once, its last
    /// assignment applies.
    fn assign(&self, found: &mut PathAttributes, assignments: &[Assignment], nesting: usize) {
        for (name, state) in assignments.iter().rev() {
            if found.states.contains_key(name) {
                continue;
            }
            found.states.insert(name.clone(), state.clone());
            if *state != State::Set || nesting == 0 {
                continue;
            }
            match self.macros.get(name) {
                Some(assignments) => self.assign(found, assignments, nesting - 1),
                None if name == b"binary" => {
                    let unset = |name: &[u8]| (name.to_owned(), State::Unset);
                    self.assign(found, &[b"diff", &b"merge"[..], b"text"].map(unset), 0);
                }
                None => {}
            }
        }
    }
}

impl PathAttributes {
    /// Returns the state of an attribute. `None` if it is unspecified.
    #[must_use]
    pub fn state(&self, name: &str) -> Option<&State> {
        self.states.get(name.as_bytes())
    }

    /// Returns the value of an attribute. `None` if the attribute has no value.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<&[u8]> {
        match self.state(name) {
            Some(State::Value(value)) => Some(value),
            _ => None,
        }
    }
}

/// Parses a line into its pattern and its assignments. `None` for a comment, and for a line that git ignores.
fn parse_line(line: &[u8]) -> Option<(Vec<u8>, Vec<Assignment>)> {
    let is_blank = |byte: &u8| b" \t\r".contains(byte);
    let line = &line[line.iter().position(|byte| !is_blank(byte))?..];
    if line[0] == b'#' {
        return None;
    }
    let (pattern, rest) = match line {
        [b'"', quoted @ ..] => unquoted(quoted)?,
        line => {
            let end = line.iter().position(is_blank).unwrap_or(line.len());
            (line[..end].to_owned(), &line[end..])
        }
    };
    let words = rest.split(is_blank).filter(|word| !word.is_empty());
    Some((pattern, words.filter_map(assignment).collect()))
}

/// Parses a text in C quotes, after its opening quote. Returns the unquoted text, and the text after the closing quote.
fn unquoted(text: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let (mut found, mut at) = (Vec::new(), 0);
    loop {
        let byte = *text.get(at)?;
        at += 1;
        match byte {
            b'"' => return Some((found, &text[at..])),
            b'\\' => {
                let escaped = *text.get(at)?;
                at += 1;
                found.push(match escaped {
                    b'a' => 7,
                    b'b' => 8,
                    b't' => b'\t',
                    b'n' => b'\n',
                    b'v' => 11,
                    b'f' => 12,
                    b'r' => b'\r',
                    b'\\' | b'"' => escaped,
                    b'0'..=b'3' => {
                        let digits = std::str::from_utf8(text.get(at - 1..at + 2)?).ok()?;
                        at += 2;
                        u8::from_str_radix(digits, 8).ok()?
                    }
                    _ => return None,
                });
            }
            byte => found.push(byte),
        }
    }
}

fn assignment(word: &[u8]) -> Option<Assignment> {
    let (name, state) = match word {
        [b'-', name @ ..] => (name, State::Unset),
        [b'!', name @ ..] => (name, State::Unspecified),
        word => match word.iter().position(|byte| *byte == b'=') {
            Some(at) => (&word[..at], State::Value(word[at + 1..].to_owned())),
            None => (word, State::Set),
        },
    };
    is_name(name).then(|| (name.to_owned(), state))
}

fn is_name(name: &[u8]) -> bool {
    let is_allowed = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._".contains(byte);
    !name.is_empty() && name[0] != b'-' && name.iter().all(is_allowed)
}

/// Converts a pattern to a glob for paths relative to the directory of the attribute file. `None` if the pattern
/// matches no file.
fn glob(pattern: &[u8]) -> Option<globset::Glob> {
    let pattern = std::str::from_utf8(pattern).ok()?;
    // Git allows no negative patterns in attribute files. A pattern for directories has no effect on the files in them.
    if pattern.is_empty() || pattern.starts_with('!') || pattern.ends_with('/') {
        return None;
    }
    let mut text = String::new();
    if !pattern.contains('/') {
        text.push_str("**/");
    }
    // In git, braces are not alternatives, so they are escaped.
    let mut is_escaped = false;
    for c in pattern.strip_prefix('/').unwrap_or(pattern).chars() {
        if matches!(c, '{' | '}') && !is_escaped {
            text.push('\\');
        }
        is_escaped = c == '\\' && !is_escaped;
        text.push(c);
    }
    GlobBuilder::new(&text).literal_separator(true).backslash_escape(true).build().ok()
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// Formats the state of an attribute like `git check-attr`.
    fn shown(attributes: &Attributes, path: &str, name: &str) -> String {
        match attributes.of(path.as_bytes()).state(name) {
            None => "unspecified".to_owned(),
            Some(State::Set) => "set".to_owned(),
            Some(State::Unset) => "unset".to_owned(),
            Some(State::Unspecified) => unreachable!("removed"),
            Some(State::Value(value)) => String::from_utf8_lossy(value).into_owned(),
        }
    }

    /// The output of git is the expected value.
    #[test]
    fn agrees_with_git() {
        let top = tempfile::tempdir().expect("a directory");
        let git = |arguments: &[&str]| {
            let mut git = Command::new("git");
            git.current_dir(top.path()).env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_ATTR_NOSYSTEM", "1");
            let output = git.args(arguments).output().expect("git");
            assert!(output.status.success(), "{arguments:?}");
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        git(&["init", "-q"]);
        let long = format!("*.long {}\n", "x".repeat(3000));
        let root = format!(
            "\u{feff}* text=auto\n[attr]mine -text filter=m ident\n*.bin binary\n*.m mine\n  # comment\n\n\
             /top eol=crlf\nsub/*.c eol=lf\nsub/** ident\n!neg text\nname/ ident\n\"a b\" eol=crlf\n\
             \"q\\\"\\101\" ident\na{{b,c}} eol=crlf\n*.m !ident\n**/deep/x eol=lf\n[ab].t -text\n[!ab].t eol=lf\n\
             *.txt text eol=crlf -ident\n*.txt working-tree-encoding=UTF-16\n\\#hash eol=crlf\n{long}bad =x -=y --z\n"
        );
        for (path, text) in [
            (".gitattributes", root.as_str()),
            ("sub/.gitattributes", "*.c -text\n/x ident\n[attr]other text\n*.o other\nd/*.c !text\n"),
            (".git/info/attributes", "*.win eol=crlf\nsub/strong -text\n"),
        ] {
            let path = top.path().join(path);
            std::fs::create_dir_all(path.parent().expect("a parent")).expect("made");
            std::fs::write(path, text).expect("written");
        }
        let mut attributes = Attributes::default();
        for (directory, path) in
            [("", ".gitattributes"), ("sub", "sub/.gitattributes"), ("", ".git/info/attributes")]
        {
            let text = std::fs::read(top.path().join(path)).expect("read");
            attributes.add(directory.as_bytes(), &text).expect("bounded");
        }
        let paths = [
            "top",
            "sub/top",
            "a.bin",
            "sub/a.bin",
            "a.m",
            "sub/b.m",
            "sub/a.c",
            "sub/d/a.c",
            "a.c",
            "sub/x",
            "x",
            "sub/d/x",
            "neg",
            "name/x",
            "name",
            "a b",
            "q\"A",
            "ab",
            "a{b,c}",
            "deep/x",
            "1/2/deep/x",
            "a.t",
            "c.t",
            "^.t",
            "r.txt",
            "sub/r.txt",
            "#hash",
            "z.win",
            "sub/strong",
            "a.o",
            "sub/a.o",
            "a.long",
            "bad",
        ];
        for name in ["text", "eol", "ident", "filter", "working-tree-encoding", "diff", "mine"] {
            for path in paths {
                let expected = git(&["-c", "core.quotePath=false", "check-attr", "-z", name, "--", path]);
                let expected = expected.split('\0').nth(2).expect("a state").to_owned();
                assert_eq!(shown(&attributes, path, name), expected, "{name} of {path}");
            }
        }
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let text = b"\"a\\101b\" -x !y z=1\n[attr]m -m\n**/x[!a-]*\\{ m\n";
        for at in 0..text.len() {
            for byte in [0, b'"', b'\\', b'[', b'*', b'\n', b'!', b'=', b'0', 0xff] {
                let mut changed = text.to_vec();
                changed[at] = byte;
                let mut attributes = Attributes::default();
                let _ = attributes.add(b"", &changed).is_ok();
                let _ = attributes.of(b"d/x\xff");
            }
            let _ = Attributes::default().add(b"", &text[..at]).is_ok();
        }
    }

    #[test]
    fn is_bounded() {
        let mut attributes = Attributes::default();
        assert_eq!(attributes.add(b"", &vec![b'#'; MAX_ATTRIBUTES + 1]), Err(TooManyAttributes));
        assert_eq!(
            attributes.add(b"", "*.x text\n".repeat(MAX_PATTERNS + 1).as_bytes()),
            Err(TooManyAttributes)
        );
        let mut attributes = Attributes::default();
        attributes.add(b"", b"[attr]a b\n[attr]b a\n* a\n").expect("bounded");
        assert_eq!(attributes.of(b"x").state("b"), Some(&State::Set));
    }
}
