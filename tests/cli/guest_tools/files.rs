//! Tests operations on files of the workspace.

use anyhow::{Result, ensure};
use serde_json::json;
use tar::{Builder, EntryType, Header};

use super::table::{line, run_all, tool};
use crate::asking::running_bottle;
use crate::home::run;

/// The script with which the agent creates files.
const MADE: &str = "mkdir -p b/c pkg bin; echo 1 >b/c/f; echo 2 >b.txt; echo 3 >a; chmod 750 a; \
                    mkfifo pipe; ln -s b link; ln -s ../b.txt b/up; ln -s /etc out; ln a hard; \
                    echo run >pkg/run; ln -s ../pkg/run bin/run; \
                    head -c 300000 /dev/zero >big";

/// A diff with a hunk for each file. `of_b` is the line that the hunk for `b.txt` replaces.
fn diff(of_b: &str) -> String {
    format!(
        "--- a/a\n+++ b/a\n@@ -1 +1 @@\n-3\n+three\n--- a/b.txt\n+++ b/b.txt\n@@ -1 +1 @@\n-{of_b}\n+two\n"
    )
}

/// An archive with one member.
fn archive(kind: EntryType, name: &str, target: &str) -> Result<Vec<u8>> {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(0o644);
    header.set_size(0);
    // These setters do not check the values, so the archive can be that of an attacker.
    header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
    header.as_old_mut().linkname[..target.len()].copy_from_slice(target.as_bytes());
    header.set_cksum();
    let mut builder = Builder::new(Vec::new());
    builder.append(&header, std::io::empty())?;
    Ok(builder.into_inner()?)
}

#[test]
fn files_are_listed_changed_and_removed() -> Result<()> {
    let Some(home) = running_bottle("the table of files", "linux", &[])? else { return Ok(()) };
    let _ = run(&home, &["exec", "one", "--", "sh", "-ec", MADE])?.expect_code(0);
    run_all(
        &home,
        &[
            line(
                "a list is sorted, with a directory directly before its contents",
                "fs ls one b -r --json",
                0,
            )
            .has(json!({"entries": [
                    {"path": "b/c", "kind": "directory"},
                    {"path": "b/c/f", "kind": "file", "size_bytes": 2},
                    {"path": "b/up", "kind": "symlink", "target": "../b.txt"},
                ], "next": null})),
            line("a FIFO does not break it, and links are not followed", "fs ls one --json", 0).has(
                json!({"entries": [
                    {"path": "a", "mode": "0750", "links": 2},
                    {"path": "b", "kind": "directory", "size_bytes": 0},
                    {"path": "b.txt"},
                    {"path": "big"},
                    {"path": "bin"},
                    {"path": "hard", "kind": "file"},
                    {"path": "link", "kind": "symlink", "target": "b"},
                    {"path": "out", "kind": "symlink", "target": "/etc"},
                    {"path": "pipe", "kind": "other"},
                    {"path": "pkg"},
                ]}),
            ),
            line("a file lists itself", "fs ls one a --json", 0).has(json!({"entries": [{"path": "a"}]})),
            line("a list has a bound, and goes on", "fs ls one --limit 2 --after b.txt --json", 0)
                .has(json!({"entries": [{"path": "big"}, {"path": "bin"}], "next": "bin"})),
            line("a large file is read in parts", "fs read one big --max 1000 --json", 0)
                .has(json!({"offset": 0, "next": 1000, "size_bytes": 300_000})),
            line("up to its end", "fs read one big --offset 299999 --json", 0)
                .has(json!({"text": "\u{0}", "next": 300_000})),
            line("behind which there is nothing", "fs read one a --offset 9000 --json", 0)
                .has(json!({"text": "", "next": 9000, "size_bytes": 2})),
            line("a link inside the workspace is read", "fs read one bin/run", 0).prints("run\n"),
            line("one that leads outside is not", "fs read one out/passwd", 1).says("out/passwd"),
            line("a FIFO is never opened", "fs read one pipe", 1).says("pipe"),
            line("an empty path is refused", "fs read one ''", 1).says("cannot"),
            line("a write replaces a file", "fs write one a --json", 0)
                .input("3\n")
                .has(json!({"created": false, "size_bytes": 2})),
            line("which keeps its mode, and has its own content", "fs stat one a --json", 0)
                .has(json!({"mode": "0750", "links": 1})),
            line("a write makes directories", "fs write one new/deep/file --json", 0)
                .input("x")
                .has(json!({"created": true})),
            line("and leaves no other file", "fs ls one new -r --json", 0)
                .has(json!({"entries": [{"path": "new/deep"}, {"path": "new/deep/file", "mode": "0644"}]})),
            line("a write to a link is refused", "fs write one bin/run", 1).input("x").says("bin/run"),
            line("as is one through a link that leads outside", "fs write one out/hosts", 1)
                .input("x")
                .says("out/hosts"),
            line("or to a directory", "fs write one pkg", 1).input("x").says("pkg"),
            tool("a tool writes", "file_write", json!({"bottle": "one", "path": "t", "content": "ä\n"}))
                .has(json!({"size_bytes": 3, "created": true})),
            line("a diff of which one hunk fits", "fs patch one", 1).input(diff("other")).says("b.txt"),
            line("changes no file", "fs read one a", 0).prints("3\n"),
            line("a check of a diff", "fs patch one --check --json", 0)
                .input(diff("2"))
                .has(json!({"applied": false})),
            line("changes none either", "fs read one a", 0).prints("3\n"),
            line("a diff that fits", "fs patch one --json", 0).input(diff("2")).has(json!({"applied": true})),
            line("changes all its files", "exec one -- cat a b.txt", 0).prints("three\ntwo\n"),
            line("and keeps their modes", "fs stat one a --json", 0).has(json!({"mode": "0750"})),
            line("a directory is not deleted", "fs rm one b", 1).says("it is a directory"),
            tool("nor by a tool", "file_delete", json!({"bottle": "one", "path": "b"}))
                .refused("it is a directory"),
            line("a link is deleted itself", "fs rm one link", 0),
            line("and not what it leads to", "fs read one b/c/f", 0).prints("1\n"),
            line("also one that leads outside", "fs rm one out", 0),
            line("a path outside is not deleted", "fs rm one ../etc/hosts", 1).says("outside the workspace"),
            line("an archive with a name above its directory is refused", "fs import one in", 1)
                .input(archive(EntryType::Regular, "../x", "")?)
                .says("points outside"),
            line("and one with an absolute name", "fs import one in", 1)
                .input(archive(EntryType::Regular, "/x", "")?)
                .says("points outside"),
            line("and one with an empty name", "fs import one in", 1)
                .input(archive(EntryType::Regular, "", "")?)
                .says("has no name"),
            line("and one with a device", "fs import one in", 1)
                .input(archive(EntryType::Char, "null", "")?)
                .says("a device or a pipe"),
            line("and one with a hard link to a file outside", "fs import one in", 1)
                .input(archive(EntryType::Link, "x", "/etc/passwd")?)
                .says("\"/etc/passwd\": the name points outside the archive"),
            line("and one with a hard link to a file that it lacks", "fs import one in", 1)
                .input(archive(EntryType::Link, "x", "y")?)
                .says("the target of the hard link is not a file of the archive"),
            line("and what is no archive", "fs import one in", 1).input("no archive at all").says("cannot"),
            line("nothing of them is there", "exec one -- sh -c 'ls in ../x 2>/dev/null; true'", 0)
                .prints(""),
        ],
    )?;
    // Hard links are exported as copies. Links that stay inside are exported and imported unchanged.
    let _ =
        run(&home, &["exec", "one", "--", "sh", "-ec", "ln pkg/run pkg/hard; mkdir all; mv pkg bin all"])?
            .expect_code(0);
    let exported = run(&home, &["fs", "export", "one", "all"])?.expect_code(0).stdout;
    run_all(
        &home,
        &[
            line("an export goes in again", "fs import one copy --json", 0)
                .input(exported)
                .has(json!({"entries": 5})),
            line(
                "with its links",
                "exec one --workdir /workspace/copy -- \
                 sh -c 'cat bin/run pkg/hard; readlink bin/run; stat -c %h pkg/run pkg/hard'",
                0,
            )
            .prints("run\nrun\n../pkg/run\n1\n1\n"),
        ],
    )?;
    let listed = run(&home, &["fs", "ls", "one", "copy"])?.expect_code(0).stdout;
    ensure!(listed == "copy/bin\ncopy/pkg\n", "{listed}");
    Ok(())
}
