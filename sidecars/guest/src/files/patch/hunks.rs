//! Parses unified diffs, and applies their hunks.
//!
//! The library `diffy` parses a diff. This module applies the hunks itself, because a hunk must not be applied at a
//! wrong position that happens to have the same lines. A hunk must match at its stated line, or at exactly one other
//! position.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use bottle_protocol::session::files::{FilePath, PATCHED_FILES_MAX};
use bottle_protocol::session::guest::Failure;
use diffy::patch_set::{
    FileMode, FileOperation, FilePatch, ParseOptions, PatchKind, PatchSet, PatchSetParseError,
};
use diffy::{Hunk, Line};

use super::super::bounds::Bounds;
use crate::failure::{Outcome, other};

/// The number of positions between two checks of the bounds.
const CHECK_EVERY: usize = 1024;

/// The part of a diff about one file.
pub(super) struct FileDiff<'a> {
    pub(super) path: FilePath,
    pub(super) operation: Operation,
    patch: FilePatch<'a, [u8]>,
}

/// The operation of a diff on one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    Create { executable: bool },
    Change,
    Delete,
}

/// Parses a unified diff.
pub(super) fn parse(diff: &[u8]) -> Outcome<Vec<FileDiff<'_>>> {
    let lines = || diff.split(|&byte| byte == b'\n');
    let git = lines().any(|line| line.starts_with(b"diff --git "));
    let options = if git { ParseOptions::gitdiff() } else { ParseOptions::unidiff() };
    let mut files = Vec::new();
    for parsed in PatchSet::parse_bytes(diff, options) {
        let file = parsed.map_err(|error| other(format!("cannot parse the diff: {}", reason(&error))))?;
        files.push(FileDiff::new(file)?);
        if files.len() > PATCHED_FILES_MAX {
            return Err(other(format!("the diff changes more than {PATCHED_FILES_MAX} files")));
        }
    }
    // The parser ignores lines that do not belong to a file, so a hunk after such lines would be lost without an error.
    let hunks: usize = files.iter().map(|file| file.hunks().len()).sum();
    if lines().filter(|line| line.starts_with(b"@@ ")).count() != hunks {
        return Err(other("cannot parse the diff: a hunk belongs to no file, or follows lines of no hunk"));
    }
    Ok(files)
}

/// Returns the reason of an error, without the prefix "error parsing patches" or "error parsing patch".
fn reason(error: &PatchSetParseError) -> String {
    let text = error.to_string();
    let text = text.trim_start_matches("error parsing patches").trim_start_matches([':', ' ']);
    text.trim_start_matches("error parsing patch").trim_start_matches([':', ' ']).to_owned()
}

impl<'a> FileDiff<'a> {
    fn new(file: FilePatch<'a, [u8]>) -> Outcome<Self> {
        let (path, mut operation) = target(file.operation())?;
        let refused = |why: &str| Err(other(format!("cannot patch {:?}: {why}", path.as_path())));
        let executable = file.new_mode() == Some(&FileMode::Executable);
        match (operation, file.old_mode(), file.new_mode()) {
            (Operation::Create { .. }, _, Some(FileMode::Symlink | FileMode::Gitlink)) => {
                return refused("the diff creates a symlink or a submodule");
            }
            (Operation::Create { .. }, ..) => operation = Operation::Create { executable },
            (Operation::Change, Some(old), Some(new)) if old != new => {
                return refused("the diff changes its mode; `bottle exec` runs chmod");
            }
            _ => {}
        }
        let PatchKind::Text(patch) = file.patch() else { return refused("the diff is binary") };
        if operation == Operation::Change && patch.hunks().is_empty() {
            return refused("the diff has no hunks for it");
        }
        Ok(Self { path, operation, patch: file })
    }

    fn hunks(&self) -> &[Hunk<'_, [u8]>] {
        self.patch.patch().as_text().map(|patch| patch.hunks()).unwrap_or_default()
    }

    /// Returns the number of hunks.
    pub(super) fn places(&self) -> u64 {
        self.hunks().len() as u64
    }

    /// Applies the hunks to the content of the file.
    pub(super) fn apply(&self, content: &[u8], bounds: &Bounds) -> Result<Vec<u8>, Failure> {
        apply(content, self.hunks(), bounds).map_err(|error| match error {
            NotApplied::Mismatch(why) => other(format!("cannot patch {:?}: {why}", self.path.as_path())),
            NotApplied::Bounds(failure) => failure,
        })
    }
}

/// Returns the file that a diff changes, without git's prefixes `a/` and `b/`, and the operation.
fn target(operation: &FileOperation<'_, [u8]>) -> Outcome<(FilePath, Operation)> {
    let path = |bytes: &[u8]| FilePath::from(OsStr::from_bytes(bytes));
    let without = |bytes: &[u8], directory: &[u8]| path(bytes.strip_prefix(directory).unwrap_or(bytes));
    match operation {
        FileOperation::Create(new) => Ok((without(new, b"b/"), Operation::Create { executable: false })),
        FileOperation::Delete(old) => Ok((without(old, b"a/"), Operation::Delete)),
        FileOperation::Modify { original, modified } => {
            let stripped = original.strip_prefix(b"a/").zip(modified.strip_prefix(b"b/"));
            let (old, new) = stripped.unwrap_or((original, modified));
            if old == new {
                return Ok((path(new), Operation::Change));
            }
            Err(renamed(&path(old), &path(new)))
        }
        FileOperation::Rename { from, to } | FileOperation::Copy { from, to } => {
            Err(renamed(&path(from), &path(to)))
        }
    }
}

fn renamed(old: &FilePath, new: &FilePath) -> Failure {
    let (old, new) = (old.as_path(), new.as_path());
    other(format!(
        "cannot patch {old:?}: the diff renames or copies it to {new:?}; write it with --no-renames"
    ))
}

enum NotApplied {
    Mismatch(String),
    Bounds(Failure),
}

/// Applies hunks one after the other, and returns the new content.
fn apply(content: &[u8], hunks: &[Hunk<'_, [u8]>], bounds: &Bounds) -> Result<Vec<u8>, NotApplied> {
    let lines: Vec<&[u8]> = content.split_inclusive(|&byte| byte == b'\n').collect();
    let mut result = Vec::with_capacity(content.len());
    // The number of lines that were already processed, and the distance of the last hunk from its stated line.
    let (mut done, mut shift) = (0, 0);
    for (number, hunk) in hunks.iter().enumerate() {
        let old: Vec<&[u8]> = sides(hunk, |line| !matches!(line, Line::Insert(_)));
        let new: Vec<&[u8]> = sides(hunk, |line| !matches!(line, Line::Delete(_)));
        let stated = hunk.old_range().start();
        // If a hunk has no old lines, it inserts after its stated line.
        let stated = if old.is_empty() { stated } else { stated.saturating_sub(1) };
        let expected = stated.saturating_add_signed(shift);
        let mismatch = |why: String| {
            NotApplied::Mismatch(format!("hunk {} (line {}) {why}", number + 1, hunk.old_range().start()))
        };
        let position = position(&lines, &old, expected, done, bounds)?.map_err(mismatch)?;
        shift = position.cast_signed() - stated.cast_signed();
        let end = position + old.len();
        let ends_file = end == lines.len();
        if !new.last().is_none_or(|line| line.ends_with(b"\n")) && !ends_file {
            return Err(mismatch("has no line break at its end, but lines follow it".to_owned()));
        }
        let before = lines.get(done..position).unwrap_or_default();
        result.extend(before.iter().copied().flatten());
        result.extend(new.iter().copied().flatten());
        done = end;
    }
    result.extend(lines.get(done..).unwrap_or_default().iter().copied().flatten());
    Ok(result)
}

fn sides<'a>(hunk: &Hunk<'a, [u8]>, wanted: impl Fn(&Line<'a, [u8]>) -> bool) -> Vec<&'a [u8]> {
    let text = |line: &Line<'a, [u8]>| match *line {
        Line::Context(text) | Line::Delete(text) | Line::Insert(text) => text,
    };
    hunk.lines().iter().filter(|line| wanted(line)).map(text).collect()
}

/// Returns the index of the line at which the lines `old` begin. The result is `expected`, or the only other match
/// after the lines that were already processed.
fn position(
    lines: &[&[u8]],
    old: &[&[u8]],
    expected: usize,
    done: usize,
    bounds: &Bounds,
) -> Result<Result<usize, String>, NotApplied> {
    let is_at =
        |position: usize| position >= done && lines.get(position..).is_some_and(|rest| rest.starts_with(old));
    // A hunk cannot insert lines after a line without a line break.
    let continues =
        expected.checked_sub(1).and_then(|last| lines.get(last)).is_none_or(|line| line.ends_with(b"\n"));
    if is_at(expected) && (continues || !old.is_empty()) {
        return Ok(Ok(expected));
    }
    let mut found = None;
    if !old.is_empty() {
        for position in done..=lines.len().saturating_sub(old.len()) {
            if position % CHECK_EVERY == 0 {
                bounds.check().map_err(NotApplied::Bounds)?;
            }
            match found {
                _ if !is_at(position) => {}
                None => found = Some(position),
                Some(first) => {
                    let (first, second) = (first + 1, position + 1);
                    return Ok(Err(format!(
                        "does not match there, but at line {first} and at line {second}; give it more context"
                    )));
                }
            }
        }
    }
    Ok(found.ok_or_else(|| "does not match the file".to_owned()))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use diffy::DiffOptions;
    use proptest::prelude::*;

    use super::*;

    fn patched(content: &[u8], diff: &[u8]) -> Result<Vec<u8>, String> {
        let (bounds, _client) = Bounds::new(Duration::from_secs(60));
        let files = parse(diff).map_err(|failure| failure.message)?;
        files[0].apply(content, &bounds).map_err(|failure| failure.message)
    }

    fn diff(hunks: &str) -> Vec<u8> {
        format!("--- a/f\n+++ b/f\n{hunks}").into_bytes()
    }

    #[test]
    fn a_hunk_fits_where_it_says_or_in_one_other_place() {
        let hunk = diff("@@ -2 +2 @@\n-x\n+y\n");
        assert_eq!(patched(b"a\nx\nx\n", &hunk), Ok(b"a\ny\nx\n".to_vec()));
        assert_eq!(patched(b"a\nb\nc\nx\n", &hunk), Ok(b"a\nb\nc\ny\n".to_vec()));
        let error = patched(b"x\nb\nx\n", &hunk).expect_err("two places");
        assert!(error.contains("at line 1 and at line 3"), "{error}");
        let error = patched(b"a\nb\n", &hunk).expect_err("no place");
        assert!(error.contains("hunk 1 (line 2) does not match the file"), "{error}");
        // The second hunk is shifted by the same distance as the first hunk, and cannot be applied before the first
        // hunk.
        let two = diff("@@ -1 +1 @@\n-a\n+A\n@@ -3 +3 @@\n-x\n+y\n");
        assert_eq!(patched(b"0\na\nb\nx\nx\n", &two), Ok(b"0\nA\nb\ny\nx\n".to_vec()));
        assert!(patched(b"x\na\n", &two).is_err());
        // An insertion without context is positioned only by its line number.
        let insert = diff("@@ -1,0 +2 @@\n+new\n");
        assert_eq!(patched(b"a\nb\n", &insert), Ok(b"a\nnew\nb\n".to_vec()));
        assert!(patched(b"", &insert).is_err());
        assert!(patched(b"a", &insert).is_err(), "the line has no break");
    }

    #[test]
    fn a_missing_line_break_is_part_of_the_text() {
        let without = diff("@@ -1 +1 @@\n-a\n\\ No newline at end of file\n+b\n");
        assert_eq!(patched(b"a", &without), Ok(b"b\n".to_vec()));
        assert!(patched(b"a\n", &without).is_err());
        let removes = diff("@@ -1 +1 @@\n-a\n+b\n\\ No newline at end of file\n");
        assert_eq!(patched(b"a\n", &removes), Ok(b"b".to_vec()));
        assert!(patched(b"a\nc\n", &removes).is_err(), "lines follow");
    }

    #[test]
    fn diffs_that_are_not_understood_are_refused() {
        for (diff, why) in [
            ("", "no valid patches"),
            ("hello\n", "no valid patches"),
            ("--- a/f\n+++ b/f\n@@ -1 +1 @@\n-a\n+b\njunk\n@@ -5 +5 @@\n-x\n+y\n", "belongs to no file"),
            ("@@ -1 +1 @@\n-a\n+b\n", "no valid patches"),
            ("--- a/f\n+++ b/g\n@@ -1 +1 @@\n-a\n+b\n", "renames"),
            ("--- a/f\n+++ b/f\n@@ -1,2 +1 @@\n-a\n+b\n", "parse"),
            ("--- a/f\n+++ b/f\n@@ -99999999999999999999 +1 @@\n-a\n+b\n", "parse"),
            ("--- a/f\n+++ b/f\n", "no hunks"),
            ("diff --git a/f b/f\nold mode 100644\nnew mode 100755\n", "mode"),
            ("diff --git a/f b/g\nsimilarity index 100%\nrename from f\nrename to g\n", "renames"),
            ("diff --git a/f b/f\nindex 1..2\nBinary files a/f and b/f differ\n", "binary"),
            (
                "diff --git a/f b/f\nnew file mode 120000\n--- /dev/null\n+++ b/f\n@@ -0,0 +1 @@\n+x\n",
                "symlink",
            ),
        ] {
            let error = parse(diff.as_bytes()).map(|_| ()).expect_err(diff).message;
            assert!(error.contains(why), "{diff:?}: {error}");
        }
    }

    #[test]
    fn names_the_files_of_a_git_diff() {
        let text = "diff --git a/x b/x\nnew file mode 100755\n--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+1\n\
                    diff --git a/dir/y b/dir/y\ndeleted file mode 100644\n--- a/dir/y\n+++ /dev/null\n@@ -1 +0,0 @@\n-1\n\
                    diff --git \"a/\\303\\274\" \"b/\\303\\274\"\n--- \"a/\\303\\274\"\n+++ \"b/\\303\\274\"\n@@ -1 +1 @@\n-1\n+2\n\
                    diff --git a/empty b/empty\nnew file mode 100644\nindex 0000000..e69de29\n";
        let files: Vec<_> = parse(text.as_bytes())
            .expect("parsed")
            .iter()
            .map(|file| (file.path.as_path().display().to_string(), file.operation))
            .collect();
        let create = |executable| Operation::Create { executable };
        let expected = [
            ("x", create(true)),
            ("dir/y", Operation::Delete),
            ("ü", Operation::Change),
            ("empty", create(false)),
        ];
        assert_eq!(files, expected.map(|(path, operation)| (path.to_owned(), operation)));
        // In a diff that is not from git, the prefix `a/` is a directory of the workspace.
        let plain = parse(b"--- a/f\n+++ a/f\n@@ -1 +1 @@\n-1\n+2\n").expect("parsed");
        assert_eq!(plain[0].path.as_bytes(), b"a/f");
    }

    fn text() -> impl Strategy<Value = String> {
        prop::collection::vec("[ab@+\\-\\\\ ]{0,3}\r?\n", 0..20)
            .prop_flat_map(|lines| "[ab]{0,2}".prop_map(move |end| lines.concat() + &end))
    }

    proptest! {
        #[test]
        fn a_diff_turns_one_text_into_the_other(old in text(), new in text(), context in 0..4_usize) {
            let mut options = DiffOptions::new();
            options.set_context_len(context).set_original_filename("a/f").set_modified_filename("b/f");
            let diff = options.create_patch(&old, &new).to_string();
            prop_assume!(old != new);
            prop_assert_eq!(patched(old.as_bytes(), diff.as_bytes()), Ok(new.into_bytes()), "{}", diff);
        }

        #[test]
        fn no_input_panics(diff in ".{0,40}", lines in "([-+ @\\\\].{0,6}\n){0,12}", content in "(.{0,3}\n?){0,6}") {
            let _ = patched(content.as_bytes(), diff.as_bytes());
            let hunk = format!("--- a/f\n+++ b/f\n@@ -1,2 +1,3 @@\n{lines}");
            let _ = patched(content.as_bytes(), hunk.as_bytes());
        }
    }
}
