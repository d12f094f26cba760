//! Tests requests on real directories. An attacker has prepared the entries of these directories.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bottle_policy::secret::Secret;
use bottle_protocol::session::files::{
    Entries, FileChange, FileEvent, FileInfo, FileKind, FilePath, FileRequest, Glob, Grep, LINE_MAX, List,
    Matches, PATCHED_FILE_MAX, Read, Replace, Scope, Write,
};
use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::bounds::{Bounds, Client, TIME};
use super::workspace::{Place, Workspace};
use super::{archive, grep, list, patch, read, remove, write};
use crate::failure::Outcome;

/// A workspace, and a file outside the workspace that requests must not read or change.
struct Bottle {
    root: tempfile::TempDir,
    bounds: Bounds,
    _client: Client,
}

const SECRET: &str = "top secret\n";

impl Bottle {
    fn new() -> Self {
        let root = tempfile::tempdir().expect("root");
        fs::create_dir(root.path().join("workspace")).expect("workspace");
        fs::create_dir(root.path().join("outside")).expect("outside");
        fs::write(root.path().join("outside/secret"), SECRET).expect("secret");
        let (bounds, _client) = Bounds::new(TIME);
        Self { root, bounds, _client }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.path().join("workspace").join(path)
    }

    fn put(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().expect("a parent")).expect("directories");
        fs::write(path, content).expect("written");
    }

    fn get(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap_or_else(|error| error.to_string())
    }

    fn link(&self, target: &str, path: &str) {
        symlink(target, self.path(path)).expect("link");
    }

    fn fifo(&self, path: &str) {
        mknodat(CWD, self.path(path), FileType::Fifo, Mode::from_raw_mode(0o644), 0).expect("fifo");
    }

    fn open(&self) -> Workspace {
        Workspace::open(self.root.path()).expect("workspace")
    }

    fn run(&self, request: FileRequest) -> Result<FileEvent, String> {
        self.run_with(request, b"")
    }

    fn run_with(&self, request: FileRequest, input: &[u8]) -> Result<FileEvent, String> {
        let (workspace, bounds) = (self.open(), &self.bounds);
        let done = match request {
            FileRequest::List(request) => list::list(&workspace, &request, bounds).map(FileEvent::Entries),
            FileRequest::Stat { path } => {
                Place::new(&path).and_then(|place| workspace.describe(&place)).map(FileEvent::Entry)
            }
            FileRequest::Read(request) => read::read(&workspace, &request, std::io::sink(), None),
            FileRequest::Write(request) => write::write(&workspace, &request, input),
            FileRequest::Patch { check } => patch::unified(&workspace, input, check, bounds),
            FileRequest::Replace(request) => patch::replace(&workspace, &request, bounds),
            FileRequest::Remove { path, recursive } => remove::remove(&workspace, &path, recursive, bounds),
            FileRequest::RemoveFiles { paths } => remove::remove_files(&workspace, &paths, bounds),
            FileRequest::Export { path } => archive::export(&workspace, &path, std::io::sink()),
            FileRequest::Import { path } => archive::import(&workspace, &path, input),
            FileRequest::Glob(request) => list::glob(&workspace, &request, bounds).map(FileEvent::Entries),
            FileRequest::Grep(request) => {
                grep::grep(&workspace, &request, bounds, None).map(FileEvent::Matches)
            }
        };
        done.map_err(|failure| failure.message)
    }

    fn read(&self, path: &str) -> Result<String, String> {
        let request = Read { path: path.into(), offset: 0, max: 1 << 20, redact: false };
        let mut content = Vec::new();
        let read = read::read(&self.open(), &request, &mut content, None).map_err(|failure| failure.message);
        read.map(|_| String::from_utf8_lossy(&content).into_owned())
    }

    fn write(&self, path: &str, content: &str) -> Result<FileEvent, String> {
        self.run_with(FileRequest::Write(Write { path: path.into(), new: false }), content.as_bytes())
    }

    fn list(&self, path: &str, recursive: bool, after: Option<FilePath>, limit: u32) -> Outcome<Entries> {
        let request = List { path: path.into(), recursive, after, limit };
        list::list(&self.open(), &request, &self.bounds)
    }

    fn secret_is_safe(&self) {
        let secret = self.root.path().join("outside/secret");
        assert_eq!(fs::read_to_string(secret).expect("secret"), SECRET);
        let outside: Vec<_> = fs::read_dir(self.root.path().join("outside")).expect("outside").collect();
        assert_eq!(outside.len(), 1, "{outside:?}");
    }

    /// Returns the sorted names in a directory of the workspace.
    fn names(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(path)).expect("directory");
        let mut names: Vec<_> =
            entries.map(|entry| entry.expect("entry").file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

fn paths(entries: &[FileInfo]) -> Vec<String> {
    entries.iter().map(|entry| entry.path.as_path().display().to_string()).collect()
}

#[test]
fn no_path_leads_outside() {
    let bottle = Bottle::new();
    bottle.put("dir/file", "inside\n");
    for (target, link) in [
        ("../outside/secret", "file-link"),
        ("../outside", "directory-link"),
        ("/outside/secret", "absolute"),
        ("/proc/self/root/etc/passwd", "proc"),
        ("/proc/self/fd/0", "magic"),
        ("chain-2", "chain-1"),
        ("dir/../../outside/secret", "chain-2"),
        ("circle", "circle"),
        ("../workspace/../outside/secret", "returns"),
    ] {
        bottle.link(target, link);
    }
    let attacks = [
        "..",
        "../outside/secret",
        "/outside/secret",
        "/etc/passwd",
        "/",
        "/workspace/../outside/secret",
        "dir/../../outside/secret",
        "file-link",
        "directory-link/secret",
        "absolute",
        "proc",
        "magic",
        "chain-1",
        "circle",
        "returns",
        "a\0b",
        "/workspacex/file",
        "//outside/secret",
    ];
    for path in attacks {
        let scope = || Scope { path: path.into(), exclude: Vec::new(), git: false };
        let limit = 10;
        assert!(bottle.read(path).is_err(), "read {path}");
        assert!(
            !bottle
                .list(path, true, None, limit)
                .is_ok_and(|listed| paths(&listed.entries).join(" ").contains("secret")),
            "list {path}"
        );
        let glob = Glob { scope: scope(), pattern: "*".into(), after: None, limit };
        assert!(bottle.run(FileRequest::Glob(glob)).is_err(), "glob {path}");
        let grep = Grep {
            scope: scope(),
            pattern: "secret".into(),
            literal: true,
            ignore_case: false,
            include: Vec::new(),
            limit,
            redact: false,
        };
        assert!(bottle.run(FileRequest::Grep(grep)).is_err(), "grep {path}");
        assert!(bottle.write(path, "changed").is_err(), "write {path}");
        let import = FileRequest::Import { path: path.into() };
        let mut header = tar::Header::new_gnu();
        header.set_size(0);
        let mut stream = tar::Builder::new(Vec::new());
        stream.append_data(&mut header, "new", &b""[..]).expect("packed");
        let stream = stream.into_inner().expect("packed");
        assert!(bottle.run_with(import, &stream).is_err(), "import {path}");
        assert!(bottle.run(FileRequest::Export { path: path.into() }).is_err(), "export {path}");
        let replace = Replace {
            path: path.into(),
            search: "secret".into(),
            replacement: "changed".into(),
            all: true,
            check: false,
        };
        assert!(bottle.run(FileRequest::Replace(replace)).is_err(), "replace {path}");
        let diff = format!("--- {path}\n+++ {path}\n@@ -1 +1 @@\n-top secret\n+changed\n");
        assert!(
            bottle.run_with(FileRequest::Patch { check: false }, diff.as_bytes()).is_err(),
            "patch {path}"
        );
    }
    for path in ["..", "/", "../outside", "/outside/secret", "directory-link/secret", ".", "", "/workspace"] {
        let removed = bottle.run(FileRequest::Remove { path: path.into(), recursive: true });
        assert!(removed.is_err(), "remove {path}: {removed:?}");
    }
    bottle.secret_is_safe();
    // Requests describe and remove a symlink itself, not its target.
    let described = bottle.run(FileRequest::Stat { path: "file-link".into() });
    let Ok(FileEvent::Entry(info)) = described else { panic!("{described:?}") };
    assert_eq!((info.kind, info.target), (FileKind::Symlink, Some("../outside/secret".into())));
    let removed = bottle.run(FileRequest::Remove { path: "directory-link".into(), recursive: true });
    assert_eq!(removed, Ok(FileEvent::Removed { entries: 1 }));
    bottle.secret_is_safe();
}

#[test]
fn links_that_stay_inside_are_followed_for_reading() {
    let bottle = Bottle::new();
    bottle.put("dir/file", "inside\n");
    bottle.link("../dir/file", "dir/up");
    bottle.link("dir", "other");
    for path in ["dir/up", "other/file", "/workspace/dir/file", "./dir//x/../file", "/workspace/other/up"] {
        assert_eq!(bottle.read(path), Ok("inside\n".to_owned()), "{path}");
    }
    assert!(bottle.write("other/new", "x").is_ok());
    assert_eq!(bottle.get("dir/new"), "x");
    let error = bottle.write("dir/up", "x").expect_err("a link");
    assert!(error.contains("it is a symlink"), "{error}");
    // A recursive list shows a symlink and does not follow it.
    let listed = bottle.list("", true, None, 100).expect("listed");
    assert_eq!(paths(&listed.entries), ["dir", "dir/file", "dir/new", "dir/up", "other"]);
}

#[test]
fn only_regular_files_are_opened() {
    let bottle = Bottle::new();
    bottle.fifo("fifo");
    let _socket = UnixListener::bind(bottle.path("socket")).expect("socket");
    bottle.put("plain", "needle\n");
    for path in ["fifo", "socket"] {
        let error = bottle.read(path).expect_err(path);
        assert!(error.contains("a FIFO or a socket"), "{error}");
        assert!(bottle.write(path, "x").is_err(), "{path}");
    }
    let listed = bottle.list("", false, None, 100).expect("listed");
    let kinds: Vec<_> = listed.entries.iter().map(|entry| entry.kind).collect();
    assert_eq!(kinds, [FileKind::Other, FileKind::File, FileKind::Other]);
    let found = search(&bottle, "needle", &[]);
    assert_eq!((found.matches.len(), found.files), (1, 1), "{found:?}");
    let removed = bottle.run(FileRequest::Remove { path: "fifo".into(), recursive: false });
    assert_eq!(removed, Ok(FileEvent::Removed { entries: 1 }));
}

#[test]
fn a_write_replaces_a_file_and_keeps_its_mode() {
    let bottle = Bottle::new();
    assert_eq!(bottle.write("a/b/new", "one"), Ok(FileEvent::Written { bytes: 3, created: true }));
    assert_eq!(fs::metadata(bottle.path("a/b/new")).expect("file").mode() & 0o7777, 0o644);
    fs::set_permissions(bottle.path("a/b/new"), fs::Permissions::from_mode(0o4751)).expect("mode");
    // A hard link outside the workspace keeps the old content.
    let outside = bottle.root.path().join("outside/hard");
    fs::hard_link(bottle.path("a/b/new"), &outside).expect("hard link");
    assert_eq!(bottle.write("a/b/new", "two"), Ok(FileEvent::Written { bytes: 3, created: false }));
    let content = |path: &Path| fs::read_to_string(path).expect("content");
    assert_eq!((content(&outside), content(&bottle.path("a/b/new"))), ("one".to_owned(), "two".to_owned()));
    // The set-user-id bit, which would give a program more rights, is not kept.
    assert_eq!(fs::metadata(bottle.path("a/b/new")).expect("file").mode() & 0o7777, 0o751);
    let new = FileRequest::Write(Write { path: "a/b/new".into(), new: true });
    assert!(bottle.run_with(new, b"x").expect_err("exists").contains("it exists already"));
    assert!(bottle.write("a/b", "x").expect_err("a directory").contains("it is a directory"));
    assert!(bottle.write("a/b/new/x", "x").expect_err("a file").contains("not a directory"));
    assert_eq!(bottle.names("a/b"), ["new"], "no temporary file stays");
}

#[test]
fn an_input_that_breaks_off_leaves_no_trace() {
    struct Breaks;
    impl std::io::Read for Breaks {
        fn read(&mut self, _: &mut [u8]) -> std::io::Result<usize> {
            Err(std::io::ErrorKind::UnexpectedEof.into())
        }
    }
    let bottle = Bottle::new();
    bottle.put("old", "old");
    for path in ["old", "new", "x/y/z"] {
        let request = Write { path: path.into(), new: false };
        assert!(write::write(&bottle.open(), &request, Breaks).is_err(), "{path}");
    }
    assert_eq!((bottle.names(""), bottle.get("old")), (vec!["old".to_owned()], "old".to_owned()));
}

#[test]
fn a_list_continues_where_it_ended() {
    let bottle = Bottle::new();
    for number in 0..2500 {
        bottle.put(&format!("many/{number:04}"), "");
    }
    bottle.put("a", "");
    bottle.put("many.txt", "");
    bottle.put("many/0007x/below/deep", "");
    let whole = bottle.list("", true, None, 5000).expect("listed");
    assert_eq!((whole.entries.len(), &whole.next), (2506, &None));
    let all = paths(&whole.entries);
    assert!(all.is_sorted_by(|a, b| Path::new(a) < Path::new(b)), "directories come before their contents");
    for limit in [1, 7, 1000] {
        let (mut parts, mut after, mut rounds) = (Vec::new(), None, 0);
        loop {
            let part = bottle.list("", true, after, limit).expect("listed");
            parts.extend(paths(&part.entries));
            rounds += 1;
            after = part.next;
            if after.is_none() || (limit == 1 && rounds == 20) {
                break;
            }
        }
        assert_eq!(parts, all[..parts.len()], "{limit}");
        assert!(limit == 1 || parts.len() == all.len(), "{limit}");
    }
    // A list can continue after an entry that was removed.
    let rest = bottle.list("", false, Some("b".into()), 10).expect("listed");
    assert_eq!(paths(&rest.entries), ["many", "many.txt"]);
    let itself = bottle.list("a", false, None, 10).expect("listed");
    assert_eq!(paths(&itself.entries), ["a"]);
}

#[test]
fn unusual_names_are_names() {
    let bottle = Bottle::new();
    let names: [&[u8]; 4] = [b"line\nbreak", b"\xff\xfe", b"\x1b[31mred", b"-rf"];
    for name in names {
        fs::write(bottle.root.path().join("workspace").join(OsStr::from_bytes(name)), "x").expect("written");
    }
    let listed = bottle.list("", false, None, 10).expect("listed");
    assert_eq!(listed.entries.len(), 4);
    for entry in &listed.entries {
        assert!(names.contains(&entry.path.as_bytes()));
        let read = FileRequest::Read(Read { path: entry.path.clone(), offset: 0, max: 9, redact: false });
        assert_eq!(bottle.run(read), Ok(FileEvent::Read { next: 1, size: 1 }));
        let removed = FileRequest::Remove { path: entry.path.clone(), recursive: false };
        assert_eq!(bottle.run(removed), Ok(FileEvent::Removed { entries: 1 }));
    }
}

#[test]
fn an_answer_fits_into_a_message() {
    let bottle = Bottle::new();
    let long = "\u{1}".repeat(120);
    for number in 0..3000 {
        bottle.put(&format!("{long}/{long}/{number:04}{long}"), "");
    }
    let listed = bottle.list("", true, None, 5000).expect("listed");
    assert!(listed.next.is_some() && listed.entries.len() > 100, "{}", listed.entries.len());
    let size: usize = listed.entries.iter().map(|entry| entry.path.as_bytes().len() * 6).sum();
    assert!(size < 1 << 20, "{size}");
}

#[test]
fn a_range_of_a_file_is_read() {
    let bottle = Bottle::new();
    bottle.put("file", "0123456789");
    for (offset, max, content, next) in
        [(0, 4, "0123", 4), (4, 100, "456789", 10), (10, 4, "", 10), (99, 4, "", 99), (u64::MAX, 4, "", 0)]
    {
        let mut read = Vec::new();
        let request = Read { path: "file".into(), offset, max, redact: false };
        match read::read(&bottle.open(), &request, &mut read, None) {
            Ok(event) => assert_eq!(event, FileEvent::Read { next, size: 10 }, "{offset}"),
            Err(failure) => assert!(offset == u64::MAX, "{failure:?}"),
        }
        assert_eq!(read, content.as_bytes(), "{offset}");
    }
}

#[test]
fn secret_values_are_redacted_at_every_position_on_request() {
    let secret = Secret::new("hunter2-hunter2".to_owned());
    let redactor = crate::redaction::of_values([&secret].into_iter()).expect("a redactor");
    let bottle = Bottle::new();
    let filler = "x".repeat((256 << 10) - 8);
    let text = format!("{filler} hunter2-hunter2\nAn aHVudGVyMi1odW50ZXIy b\n");
    bottle.put("file", &text);
    let shown = format!("{filler} [REDACTED]\nAn [REDACTED] b\n");
    for max in [1 << 20, 256 << 10, (256 << 10) - 3] {
        let (mut read, mut offset) = (Vec::new(), 0);
        loop {
            let request = Read { path: "file".into(), offset, max, redact: true };
            let event = read::read(&bottle.open(), &request, &mut read, Some(&redactor)).expect("read");
            let FileEvent::Read { next, size } = event else { panic!("{event:?}") };
            assert_eq!(size, text.len() as u64);
            if next == offset {
                break;
            }
            offset = next;
        }
        assert!(read == shown.as_bytes(), "{max}");
    }
    bottle.put("small", "key: hunter2-hunter2");
    let found = |pattern: &str, redact| {
        let scope = Scope { path: "small".into(), exclude: Vec::new(), git: false };
        let (pattern, include) = (pattern.to_owned(), Vec::new());
        let request = Grep { scope, pattern, literal: false, ignore_case: false, include, limit: 9, redact };
        let (bounds, _client) = Bounds::new(TIME);
        let found = grep::grep(&bottle.open(), &request, &bounds, Some(&redactor)).expect("searched");
        found.matches.first().map(|line| line.text.clone())
    };
    assert_eq!(found("key", true).as_deref(), Some("key: [REDACTED]"));
    assert_eq!(found("key", false).as_deref(), Some("key: hunter2-hunter2"));
    assert_eq!(found("hunter", true), None, "a pattern does not find a part of a value");
}

#[test]
fn directories_are_removed_only_on_request() {
    let bottle = Bottle::new();
    bottle.put("dir/sub/file", "x");
    bottle.link("../../outside", "dir/link");
    bottle.fifo("dir/fifo");
    for number in 0..1500 {
        bottle.put(&format!("dir/many/{number}"), "");
    }
    let remove = |recursive| bottle.run(FileRequest::Remove { path: "dir".into(), recursive });
    assert!(remove(false).expect_err("a directory").contains("--recursive"));
    assert_eq!(remove(true), Ok(FileEvent::Removed { entries: 1506 }));
    assert!(remove(true).expect_err("gone").contains("does not exist"));
    bottle.secret_is_safe();
}

#[test]
fn files_are_removed_with_the_directories_that_they_leave_empty() {
    let bottle = Bottle::new();
    for path in ["a/b/c/one", "a/two", "a/b/three", "kept/four", "five"] {
        bottle.put(path, "x");
    }
    bottle.link("../outside", "kept/link");
    bottle.link("../outside", "directory-link");
    let remove = |paths: &[&str]| {
        bottle.run(FileRequest::RemoveFiles { paths: paths.iter().map(FilePath::from).collect() })
    };
    assert_eq!(remove(&["a/b/c/one", "kept/link", "absent/x"]), Ok(FileEvent::Removed { entries: 2 }));
    assert_eq!(bottle.names("a/b"), ["three"], "`c` is empty, and `b` is not");
    assert_eq!(remove(&["a/two", "a/b/three", "five"]), Ok(FileEvent::Removed { entries: 3 }));
    assert!(!bottle.path("a").exists() && bottle.path("kept/four").exists());
    let failure = remove(&["kept/four", "directory-link/secret"]).expect_err("a link leads outside");
    assert!(failure.ends_with("1 entries were removed"), "{failure}");
    assert_eq!(remove(&["../outside/secret"]).expect_err("it is outside").split(':').count(), 2);
    bottle.put("directory/file", "x");
    assert!(remove(&["directory"]).expect_err("a directory").contains("it is a directory"));
    assert_eq!(bottle.names("directory"), ["file"]);
    bottle.secret_is_safe();
}

#[test]
fn a_glob_finds_paths() {
    let bottle = Bottle::new();
    for path in ["a.rs", "src/b.rs", "src/deep/c.rs", "src/b.txt", "target/d.rs", ".git/e.rs", ".hidden/f.rs"]
    {
        bottle.put(path, "");
    }
    let find = |path: &str, pattern: &str, exclude: &[&str]| {
        let exclude = exclude.iter().map(|&pattern| pattern.to_owned()).collect();
        let scope = Scope { path: path.into(), exclude, git: false };
        let glob = Glob { scope, pattern: pattern.into(), after: None, limit: 100 };
        list::glob(&bottle.open(), &glob, &bottle.bounds).map(|found| paths(&found.entries).join(" "))
    };
    for (path, pattern, exclude, found) in [
        ("", "*.rs", &["target/"][..], ".hidden/f.rs a.rs src/b.rs src/deep/c.rs"),
        ("", "/*.rs", &[], "a.rs"),
        ("", "src/*.rs", &[], "src/b.rs"),
        ("", "src/**/*.rs", &[], "src/b.rs src/deep/c.rs"),
        ("src", "*.{rs,txt}", &["deep"], "src/b.rs src/b.txt"),
        ("", "s*", &[], "src"),
    ] {
        assert_eq!(find(path, pattern, exclude).as_deref(), Ok(found), "{path} {pattern}");
    }
    assert!(find("", "[", &[]).expect_err("syntax").message.contains("the pattern \"[\" has an error"));
    assert!(find("", &"x".repeat(5000), &[]).is_err());
    // A part of the list ends before the next matching entry.
    let scope = Scope { path: "".into(), exclude: vec![], git: true };
    let mut glob = Glob { scope, pattern: "*.rs".into(), after: None, limit: 3 };
    let first = list::glob(&bottle.open(), &glob, &bottle.bounds).expect("found");
    assert_eq!(paths(&first.entries), [".git/e.rs", ".hidden/f.rs", "a.rs"]);
    glob.after = first.next;
    let second = list::glob(&bottle.open(), &glob, &bottle.bounds).expect("found");
    assert_eq!(
        (paths(&second.entries), second.next),
        (vec!["src/b.rs".into(), "src/deep/c.rs".into(), "target/d.rs".into()], None)
    );
}

fn search(bottle: &Bottle, pattern: &str, include: &[&str]) -> Matches {
    let scope = Scope { path: "".into(), exclude: vec!["skipped".into()], git: false };
    let include = include.iter().map(|&pattern| pattern.to_owned()).collect();
    let pattern = pattern.into();
    let request =
        Grep { scope, pattern, literal: false, ignore_case: false, include, limit: 100, redact: false };
    grep::grep(&bottle.open(), &request, &bottle.bounds, None).expect("searched")
}

#[test]
fn grep_finds_lines() {
    let bottle = Bottle::new();
    bottle.put("a.txt", "one\r\ntwo\nnone");
    bottle.put("b/c.md", "ONE\n\n\none\n");
    bottle.put("binary", b"one\0one\n");
    bottle.put("latin", b"one \xff\n");
    bottle.put("skipped/d.txt", "one\n");
    bottle.put(".git/e", "one\n");
    bottle.link("a.txt", "link");
    // A line without a line break. The line is much longer than the part of a line that is searched.
    bottle.put("huge", format!("{}one{}", "x".repeat(1000), "y".repeat(3 << 20)));
    let lines = |found: &Matches| -> Vec<String> {
        let line = |m: &bottle_protocol::session::files::LineMatch| {
            format!("{}:{}:{}", m.path.as_path().display(), m.line, if m.cut { "cut" } else { &m.text })
        };
        found.matches.iter().map(line).collect()
    };
    let found = search(&bottle, "one$", &[]);
    assert_eq!(lines(&found), ["a.txt:1:one", "a.txt:3:none", "b/c.md:4:one"]);
    assert_eq!((found.files, found.skipped, found.stopped), (4, 1, None));
    let found = search(&bottle, "one", &["huge", "latin"]);
    assert_eq!(lines(&found), ["huge:1:cut", "latin:1:one \u{fffd}"]);
    assert!(found.matches[0].text.len() == LINE_MAX && found.matches[0].text.contains("xone"), "{found:?}");
    let request = |pattern: &str, literal, ignore_case, limit, path: &str| {
        let scope = Scope { path: path.into(), exclude: vec![], git: true };
        let pattern = pattern.into();
        let request = Grep { scope, pattern, literal, ignore_case, include: vec![], limit, redact: false };
        grep::grep(&bottle.open(), &request, &bottle.bounds, None)
    };
    assert_eq!(lines(&request("o.e", true, false, 9, "").expect("searched")), [] as [&str; 0]);
    assert_eq!(request("one", true, true, 9, "b/c.md").expect("searched").matches.len(), 2);
    let few = request("one", true, false, 2, "").expect("searched");
    assert_eq!((few.matches.len(), few.stopped.as_deref()), (2, Some("it found more lines than its limit")));
    for pattern in ["(", &"x".repeat(5000), r"(\w{500}){500}"] {
        assert!(request(pattern, false, false, 9, "").is_err(), "{pattern}");
    }
}

fn apply(bottle: &Bottle, diff: &str, check: bool) -> Result<Vec<(String, FileChange)>, String> {
    match bottle.run_with(FileRequest::Patch { check }, diff.as_bytes()) {
        Ok(FileEvent::Patched { files }) => {
            Ok(files.iter().map(|file| (file.path.as_path().display().to_string(), file.change)).collect())
        }
        Ok(other) => panic!("{other:?}"),
        Err(error) => Err(error),
    }
}

const THREE: &str = "--- a/changed\n+++ b/changed\n@@ -1 +1 @@\n-old\n+new\n\
                     --- a/gone\n+++ /dev/null\n@@ -1 +0,0 @@\n-gone\n\
                     --- /dev/null\n+++ b/x/y/made\n@@ -0,0 +1 @@\n+made\n";

#[test]
fn a_patch_changes_all_files_or_none() {
    let bottle = Bottle::new();
    bottle.put("changed", "old\n");
    bottle.put("gone", "gone\n");
    fs::set_permissions(bottle.path("changed"), fs::Permissions::from_mode(0o755)).expect("mode");
    let before = |bottle: &Bottle| {
        assert_eq!((bottle.get("changed"), bottle.get("gone")), ("old\n".into(), "gone\n".into()));
        assert_eq!(bottle.names(""), ["changed", "gone"]);
        assert_eq!(fs::metadata(bottle.path("changed")).expect("file").mode() & 0o777, 0o755);
    };
    let changes = [
        ("changed".to_owned(), FileChange::Changed),
        ("gone".to_owned(), FileChange::Deleted),
        ("x/y/made".to_owned(), FileChange::Created),
    ];
    assert_eq!(apply(&bottle, THREE, true).as_deref(), Ok(&changes[..]));
    before(&bottle);
    for (more, why) in [
        ("--- a/absent\n+++ b/absent\n@@ -1 +1 @@\n-a\n+b\n", "does not exist"),
        ("--- a/changed\n+++ b/changed\n@@ -1 +1 @@\n-old\n+2\n", "more than once"),
        ("--- /dev/null\n+++ b/gone/x\n@@ -0,0 +1 @@\n+x\n", "not a directory"),
        ("--- /dev/null\n+++ b/../outside/x\n@@ -0,0 +1 @@\n+x\n", "outside the workspace"),
        ("--- a/../outside/secret\n+++ /dev/null\n@@ -1 +0,0 @@\n-top secret\n", "outside the workspace"),
    ] {
        let error = apply(&bottle, &format!("{THREE}{more}"), false).expect_err(why);
        assert!(error.contains(why), "{error}");
        before(&bottle);
    }
    assert_eq!(apply(&bottle, THREE, false).as_deref(), Ok(&changes[..]));
    assert_eq!((bottle.get("changed"), bottle.get("x/y/made")), ("new\n".into(), "made\n".into()));
    assert_eq!(bottle.names(""), ["changed", "x"]);
    assert_eq!(fs::metadata(bottle.path("changed")).expect("file").mode() & 0o777, 0o755);
    assert!(apply(&bottle, THREE, false).is_err(), "it was applied");
    bottle.secret_is_safe();
}

#[test]
fn a_file_too_large_to_patch_is_refused() {
    let bottle = Bottle::new();
    let file = fs::File::create(bottle.path("huge")).expect("made");
    file.set_len(PATCHED_FILE_MAX + 1).expect("sparse");
    let error = apply(&bottle, "--- a/huge\n+++ b/huge\n@@ -1 +1 @@\n-a\n+b\n", false).expect_err("huge");
    assert!(error.contains("larger than 16 MiB"), "{error}");
}

#[test]
fn a_client_that_is_gone_ends_a_request() {
    let mut bottle = Bottle::new();
    bottle.put("a", "x");
    let (bounds, client) = Bounds::new(TIME);
    bottle.bounds = bounds;
    assert!(bottle.list("", false, None, 9).is_ok());
    drop(client);
    assert!(bottle.list("", false, None, 9).is_err());
}

#[test]
fn a_directory_that_becomes_a_link_leads_nowhere() {
    let bottle = Bottle::new();
    bottle.put("dir/secret", "inside\n");
    let stop = Arc::new(AtomicBool::new(false));
    let (dir, away) = (bottle.path("dir"), bottle.path("away"));
    let attacker = std::thread::spawn({
        let stop = stop.clone();
        move || {
            while !stop.load(Ordering::Relaxed) {
                let _ = fs::rename(&dir, &away);
                let _ = symlink("../outside", &dir);
                let _ = fs::remove_file(&dir);
                let _ = fs::rename(&away, &dir);
            }
        }
    });
    for _ in 0..2000 {
        assert_ne!(bottle.read("dir/secret").as_deref(), Ok(SECRET));
        let _ = bottle.write("dir/secret", "inside\n");
        let _ = bottle.list("dir", true, None, 10);
        let _ = bottle.run(FileRequest::Remove { path: "dir/secret".into(), recursive: true });
        let found = search(&bottle, "top", &[]);
        assert_eq!(found.matches, [], "{found:?}");
    }
    stop.store(true, Ordering::Relaxed);
    attacker.join().expect("the attacker ends");
    bottle.secret_is_safe();
}

#[test]
fn an_archive_goes_out_and_in() {
    let bottle = Bottle::new();
    bottle.put("from/dir/file", "one");
    bottle.put("from/top", "two");
    bottle.link("dir/file", "from/link");
    bottle.fifo("from/fifo");
    let mut stream = Vec::new();
    archive::export(&bottle.open(), &"from".into(), &mut stream).expect("packed");
    let import = FileRequest::Import { path: "to/new".into() };
    assert_eq!(bottle.run_with(import, &stream), Ok(FileEvent::Imported { entries: 4 }));
    assert_eq!(bottle.names("to/new"), ["dir", "link", "top"]);
    assert_eq!((bottle.get("to/new/link"), bottle.get("to/new/top")), ("one".into(), "two".into()));
    // A member that leaves the directory through a symlink is refused.
    bottle.link("../../outside", "to/new/dir2");
    let mut hostile = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(3);
    hostile.append_data(&mut header, "dir2/secret", &b"bad"[..]).expect("packed");
    let hostile = hostile.into_inner().expect("packed");
    for path in ["to/new", "../outside", "to/new/dir2"] {
        assert!(bottle.run_with(FileRequest::Import { path: path.into() }, &hostile).is_err(), "{path}");
    }
    assert!(bottle.run_with(FileRequest::Import { path: "x/y".into() }, &stream[..700]).is_err());
    bottle.secret_is_safe();
}

#[test]
fn a_line_without_an_end_ends_a_search() {
    let bottle = Bottle::new();
    bottle.put("endless", "text\n".repeat(2000));
    let file = fs::File::options().write(true).open(bottle.path("endless")).expect("opened");
    file.set_len(1 << 33).expect("sparse");
    let found = search(&bottle, "absent", &[]);
    assert_eq!((found.files, found.stopped.as_deref()), (1, Some("it read 2 GiB")));
}

/// Builds an archive of these members. A member without a target is a file, whose content is its name.
fn archive_of(members: &[(&str, Option<&str>)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, target) in members {
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o644);
        if let Some(target) = target {
            header.set_entry_type(tar::EntryType::Link);
            header.set_size(0);
            builder.append_link(&mut header, name, target).expect("packed");
        } else {
            header.set_size(name.len() as u64);
            builder.append_data(&mut header, name, name.as_bytes()).expect("packed");
        }
    }
    builder.into_inner().expect("packed")
}

fn gzipped(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    std::io::Write::write_all(&mut encoder, bytes).expect("compressed");
    encoder.finish().expect("compressed")
}

#[test]
fn one_file_is_exported() {
    let bottle = Bottle::new();
    bottle.put("dir/file", "one");
    bottle.link("dir/file", "link");
    bottle.fifo("fifo");
    for (path, name) in [("dir/file", "file"), ("link", "link")] {
        let mut stream = Vec::new();
        archive::export(&bottle.open(), &path.into(), &mut stream).expect("packed");
        let import = FileRequest::Import { path: "to".into() };
        assert_eq!(bottle.run_with(import, &stream), Ok(FileEvent::Imported { entries: 1 }));
        assert_eq!(bottle.get(&format!("to/{name}")), "one");
    }
    for (path, why) in [("fifo", "a FIFO"), ("dir/file/below", "not a directory"), ("absent", "not exist")] {
        let error = archive::export(&bottle.open(), &path.into(), Vec::new()).expect_err(path);
        assert!(error.message.contains(why), "{}", error.message);
    }
}

#[test]
fn a_compressed_archive_with_hard_links_is_imported() {
    let bottle = Bottle::new();
    bottle.put("to/dir/old", "kept");
    bottle.put("to/dir/b", "replaced");
    let stream = archive_of(&[("dir/a", None), ("dir/b", Some("dir/a")), ("c", Some("./dir/a"))]);
    let import = || FileRequest::Import { path: "to".into() };
    assert_eq!(bottle.run_with(import(), &gzipped(&stream)), Ok(FileEvent::Imported { entries: 3 }));
    assert_eq!(bottle.names("to"), ["c", "dir"]);
    assert_eq!(bottle.names("to/dir"), ["a", "b", "old"]);
    assert_eq!((bottle.get("to/dir/b"), bottle.get("to/c")), ("dir/a".into(), "dir/a".into()));
    // The targets of these links are outside the archive, and one is a file of the target directory.
    for target in ["../secret", "/etc/passwd", "to/dir/old", "dir/old", "dir", "absent"] {
        let hostile = archive_of(&[("dir/new", None), ("dir/link", Some(target))]);
        assert!(bottle.run_with(import(), &hostile).is_err(), "{target}");
        assert_eq!(bottle.names("to/dir"), ["a", "b", "old"], "{target}");
    }
    bottle.secret_is_safe();
}

#[test]
fn an_archive_that_is_damaged_changes_nothing() {
    let bottle = Bottle::new();
    bottle.put("to/a", "old");
    bottle.put("to/dir/below", "old");
    let import = |path: &str, bytes: &[u8]| bottle.run_with(FileRequest::Import { path: path.into() }, bytes);
    let stream = archive_of(&[("a", None), ("b", None), ("dir/c", None)]);
    let compressed = gzipped(&stream);
    let unchanged = || {
        assert_eq!(bottle.names("to"), ["a", "dir"]);
        assert_eq!((bottle.get("to/a"), bottle.names("to/dir")), ("old".into(), vec!["below".to_owned()]));
        assert_eq!(bottle.names("."), ["to"]);
    };
    // At 1,024 bytes the first member is complete, and the second one is missing.
    for length in [0, 1, 700, 1024, 1500, 2000, 3072] {
        for path in ["to", "new/directory"] {
            assert!(import(path, &stream[..length]).is_err(), "{length}");
            unchanged();
        }
    }
    for length in [2, 10, compressed.len() / 2, compressed.len() - 1] {
        assert!(import("to", &compressed[..length]).is_err(), "{length}");
        unchanged();
    }
    // An entry that cannot replace the existing entry keeps the other entries out too.
    for member in ["dir", "a/below"] {
        assert!(import("to", &archive_of(&[("b", None), (member, None)])).is_err(), "{member}");
        unchanged();
    }
}

#[test]
fn a_directory_that_exists_gets_the_mode_of_its_entry() {
    use std::os::unix::fs::PermissionsExt;
    let bottle = Bottle::new();
    bottle.put("to/own/file", "");
    bottle.put("to/implied/file", "");
    let set = |path: &str, mode| fs::set_permissions(bottle.path(path), fs::Permissions::from_mode(mode));
    set("to/own", 0o711).and_then(|()| set("to/implied", 0o711)).expect("a mode");
    let mut builder = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::Directory);
    header.set_mode(0o050);
    header.set_size(0);
    builder.append_data(&mut header, "own", &b""[..]).expect("packed");
    header.set_entry_type(tar::EntryType::Regular);
    for path in ["own/new", "implied/new"] {
        builder.append_data(&mut header, path, &b""[..]).expect("packed");
    }
    let stream = builder.into_inner().expect("packed");
    assert!(bottle.run_with(FileRequest::Import { path: "to".into() }, &stream).is_ok());
    for (path, mode) in [("to/own", 0o750), ("to/implied", 0o711)] {
        let found = fs::metadata(bottle.path(path)).expect("there").permissions().mode() & 0o777;
        assert_eq!(found, mode, "{path}");
    }
}
