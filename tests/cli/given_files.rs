//! Tests that `diff`, `pull` and `apply` return only the agent's work, in the form in which git would commit it. The
//! repositories have various attributes, ignore rules and earlier changes of the user.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use bottle_test_support::home::TestHome;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseError, TestRunner};

use crate::home::run;
use crate::pull::{inside, with_git};

const PULL: [&str; 3] = ["pull", "one", "--uncommitted"];

/// The changes that the agent makes in the bottle, and that the test makes with plain git in another copy.
const EDITS: &str = "printf 'a\\r\\nB\\r\\nc\\r\\n' >one.crlf; printf 'x\\r\\nY\\r\\n' >auto.t; \
     sed -i s/rest/REST/ one.id; printf '\\376\\377\\0n\\0e\\0w' >one.utf16; echo tail >>one.lfs; echo fresh >new.lfs; \
     echo 'key two' >>one.secret; sed -i s/l5/L5/ plain dirty; echo new >new; chmod +x other; rm tracked.log";

fn write(path: &Path, content: &[u8]) -> Result<()> {
    fs::create_dir_all(path.parent().context("a parent")?)?;
    Ok(fs::write(path, content)?)
}

fn commit(home: &TestHome) -> Result<()> {
    home.git(&["add", "-f", "-A"])?;
    home.git(&["commit", "-qm", "begin"])?;
    Ok(())
}

fn start(home: &TestHome) -> Result<()> {
    let _ = run(home, &["start", "work", "--cwd", "--detach", "--label", "one", "-q"])?.expect_code(0);
    Ok(())
}

/// Creates a repository with files that git converts, with a tracked file that the ignore rules match, and with rules
/// in the parent directory.
fn converted(home: &TestHome) -> Result<PathBuf> {
    let project = home.project();
    let lfs = project.with_file_name("lfs-clean");
    write(
        &lfs,
        b"#!/bin/sh\nf=$(mktemp); cat >$f; printf 'version https://git-lfs.github.com/spec/v1\\noid sha256:%s\\nsize %s\\n' \
          $(sha256sum <$f | cut -d' ' -f1) $(wc -c <$f); rm $f\n",
    )?;
    fs::set_permissions(&lfs, fs::Permissions::from_mode(0o755))?;
    write(&project.with_file_name(".gitignore"), b"*.crlf\nplain\n")?;
    for (name, content) in [
        (
            ".gitattributes",
            &b"*.crlf text eol=crlf\nauto.* text=auto eol=crlf\n*.id ident\n*.utf16 text working-tree-encoding=UTF-16\n\
               *.lfs filter=lfs -text\n*.secret filter=rot13\n"[..],
        ),
        (".gitignore", b"*.log\nbuild/\n"),
        ("one.crlf", b"a\r\nb\r\nc\r\n"),
        ("two.crlf", b"a\r\nb\r\n"),
        ("auto.t", b"x\r\ny\r\n"),
        ("one.id", b"$Id$\nrest\n"),
        ("two.id", b"$Id$\nrest\n"),
        ("one.utf16", b"\xfe\xff\0o\0l\0d"),
        ("two.utf16", b"\xfe\xff\0o\0l\0d"),
        ("one.lfs", &[7; 5000]),
        ("two.lfs", &[8; 200_000]),
        ("one.secret", b"key one\n"),
        ("two.secret", b"key one\n"),
        ("plain", b"l1\nl2\nl3\nl4\nl5\n"),
        ("dirty", b"l1\nl2\nl3\nl4\nl5\n"),
        ("other", b"other\n"),
        ("tracked.log", b"log\n"),
        ("build/tracked", b"built\n"),
    ] {
        write(&project.join(name), content)?;
    }
    home.git(&["init", "-q"])?;
    home.git(&["config", "filter.lfs.clean", lfs.to_str().context("text")?])?;
    home.git(&["config", "filter.rot13.clean", "tr a-z n-za-m"])?;
    home.git(&["config", "filter.rot13.smudge", "tr n-za-m a-z"])?;
    commit(home)?;
    // Git writes the files again, and thereby converts the blobs.
    for name in ["one.id", "two.id", "one.secret", "two.utf16"] {
        fs::remove_file(project.join(name))?;
        home.git(&["checkout", "-q", "--", name])?;
    }
    Ok(project)
}

/// The entries of the index, or of a commit, by path.
fn entries(listed: &str) -> BTreeMap<String, String> {
    let entry = |line: &str| {
        let (entry, path) = line.split_once('\t')?;
        let words: Vec<&str> = entry.split(' ').collect();
        // In the listing of a tree, the object id is the third word. In the listing of an index, it is the second word.
        let object = if words[1].len() == 4 { words[2] } else { words[1] };
        Some((path.to_owned(), format!("{} {object}", words[0])))
    };
    listed.lines().filter_map(entry).collect()
}

#[test]
fn work_comes_out_as_git_would_commit_it() -> Result<()> {
    let Some(home) = with_git("work_comes_out_as_git_would_commit_it")? else { return Ok(()) };
    let project = converted(&home)?;
    let own = |at: &Path| -> Result<()> {
        let text = fs::read_to_string(at.join("dirty"))?.replace("l2", "mine");
        write(&at.join("dirty"), text.as_bytes())?;
        write(&at.join("untracked"), b"mine\n")
    };
    own(&project)?;
    let other = project.with_file_name("other");
    ensure!(Command::new("cp").arg("-a").args([&project, &other]).status()?.success(), "cp failed");
    start(&home)?;
    // The agent has not changed any file.
    assert_eq!(run(&home, &["diff", "one"])?.expect_code(0).stdout, "");
    let _ = run(&home, &PULL)?.expect_code(0);
    assert_eq!(home.git(&["rev-parse", "bottle/one"])?, home.git(&["rev-parse", "HEAD"])?);
    assert_eq!(run(&home, &["apply", "one", "--yes"])?.expect_code(0).stdout, "");
    // The same edits are made in the bottle, and in another copy with plain git.
    inside(&home, EDITS)?;
    ensure!(Command::new("/bin/sh").args(["-ec", EDITS]).current_dir(&other).status()?.success(), "failed");
    let plain = |arguments: &[&str]| -> Result<String> {
        let mut all = vec!["-C", other.to_str().context("text")?];
        all.extend(arguments);
        home.git(&all)
    };
    plain(&["add", "-u"])?;
    plain(&["add", "new", "new.lfs"])?;
    let mut expected = entries(&plain(&["ls-files", "-s"])?);
    let diff = run(&home, &["diff", "one", "--name-only"])?.expect_code(0).stdout;
    let edited = [
        "auto.t",
        "dirty",
        "new",
        "new.lfs",
        "one.crlf",
        "one.id",
        "one.lfs",
        "one.secret",
        "one.utf16",
        "other",
        "plain",
        "tracked.log",
    ];
    assert_eq!(diff.lines().collect::<Vec<_>>(), edited);
    let pulled = run(&home, &PULL)?.expect_code(0);
    assert!(
        pulled.stderr.contains("one.secret was not pulled: its filter \"rot13\" is a program"),
        "{}",
        pulled.stderr
    );
    let found = entries(&home.git(&["ls-tree", "-r", "bottle/one"])?);
    // The file `one.secret`, which has a program as its filter, keeps its blob of the last commit.
    let secret = entries(&home.git(&["ls-tree", "-r", "HEAD"])?)["one.secret"].clone();
    expected.insert("one.secret".to_owned(), secret);
    assert_eq!(found, expected);
    // The content is in the directory in which Git LFS searches for it.
    let pointer = home.git(&["cat-file", "blob", "bottle/one:one.lfs"])?;
    let id = pointer.lines().find_map(|line| line.strip_prefix("oid sha256:")).context("a pointer")?;
    let content = project.join(".git/lfs/objects").join(&id[..2]).join(&id[2..4]).join(id);
    assert_eq!(fs::read(content)?, fs::read(other.join("one.lfs"))?);
    // The user changes other lines, and `apply` writes all files.
    write(&project.join("one.crlf"), b"a\r\nb\r\nc\r\nd\r\n")?;
    let applied = run(&home, &["apply", "one", "--yes", "--json"])?.expect_code(0).json()?;
    assert_eq!(applied["deleted"], serde_json::json!(["tracked.log"]), "{applied}");
    assert_eq!(applied["merged"], serde_json::json!(["one.crlf"]), "{applied}");
    assert_eq!(fs::read(project.join("one.crlf"))?, b"a\r\nB\r\nc\r\nd\r\n");
    write(&project.join("one.crlf"), b"a\r\nB\r\nc\r\n")?;
    assert_eq!(tree(&project)?, tree(&other)?);
    Ok(())
}

/// The files below a directory without its git directory: each with its mode and content, or the target of a link.
fn tree(top: &Path) -> Result<BTreeMap<PathBuf, (u32, Vec<u8>)>> {
    let mut found = BTreeMap::new();
    let mut left = vec![top.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in fs::read_dir(&directory)? {
            let path = entry?.path();
            let status = path.symlink_metadata()?;
            let name = path.strip_prefix(top)?.to_owned();
            if status.is_dir() {
                left.extend((name != Path::new(".git")).then_some(path));
            } else if status.is_symlink() {
                found.insert(name, (0, path.read_link()?.into_os_string().into_encoded_bytes()));
            } else {
                found.insert(name, (status.permissions().mode(), fs::read(&path)?));
            }
        }
    }
    Ok(found)
}

#[test]
fn apply_deletes_and_replaces_only_what_the_bottle_was_given() -> Result<()> {
    let test = "apply_deletes_and_replaces_only_what_the_bottle_was_given";
    let Some(home) = with_git(test)? else { return Ok(()) };
    let project = home.project();
    for name in ["in/a", "out/b", "gone", "back", "kept"] {
        write(&project.join(name), name.as_bytes())?;
    }
    home.git(&["init", "-q"])?;
    commit(&home)?;
    home.git(&["sparse-checkout", "set", "in"])?;
    fs::remove_file(project.join("gone"))?;
    fs::remove_file(project.join("back"))?;
    start(&home)?;
    home.git(&["sparse-checkout", "disable"])?;
    home.git(&["checkout", "-q", "--", "gone", "back"])?;
    let before = tree(&project)?;
    inside(&home, "echo agent >back; rm in/a; mkdir -p out; echo new >out/new")?;
    for command in [&["diff", "one", "--name-only"][..], &["pull", "one", "--uncommitted", "-q"]] {
        let _ = run(&home, command)?.expect_code(0);
    }
    let changed = home.git(&["diff", "--name-status", "HEAD", "bottle/one"])?;
    assert_eq!(changed, "M\tback\nD\tin/a\nA\tout/new\n");
    let refused = run(&home, &["apply", "one", "--yes"])?.expect_code(1);
    assert!(refused.stderr.contains("conflict in back: you and the agent created it"), "{}", refused.stderr);
    assert_eq!(tree(&project)?, before);
    inside(&home, "rm back")?;
    let _ = run(&home, &["apply", "one", "--yes"])?.expect_code(0);
    let mut expected = before;
    expected.remove(Path::new("in/a"));
    let created = tree(&project)?.get(Path::new("out/new")).cloned().context("the new file")?;
    expected.insert("out/new".into(), created);
    assert_eq!(tree(&project)?, expected);
    Ok(())
}

#[test]
fn many_deletions_need_a_flag_and_renamed_files_are_none() -> Result<()> {
    let Some(home) = with_git("many_deletions_need_a_flag_and_renamed_files_are_none")? else {
        return Ok(());
    };
    let project = home.project();
    for name in ["a", "b", "c", "d"] {
        write(&project.join(name), name.as_bytes())?;
    }
    home.git(&["init", "-q"])?;
    commit(&home)?;
    start(&home)?;
    inside(&home, "mkdir sub; mv a b c sub/")?;
    let _ = run(&home, &["apply", "one", "--yes"])?.expect_code(0);
    assert!(project.join("sub/a").exists() && !project.join("a").exists());
    inside(&home, "rm sub/a d")?;
    let before = tree(&project)?;
    let refused = run(&home, &["apply", "one", "--yes"])?.expect_code(1);
    assert!(
        refused.stderr.starts_with("warning: 2 files would be deleted: d, sub/a\n"),
        "{}",
        refused.stderr
    );
    assert!(
        refused.stderr.contains("they delete 2 of 4 tracked files; nothing was changed"),
        "{}",
        refused.stderr
    );
    assert_eq!(tree(&project)?, before);
    let _ = run(&home, &["apply", "one", "--yes", "--allow-deletions"])?.expect_code(0);
    assert_eq!(tree(&project)?.len(), 2);
    Ok(())
}

/// In a repository without commits, all changes of the agent are shown, committed or not, and no files of the user.
#[test]
fn an_unborn_head_has_only_the_agents_work() -> Result<()> {
    let Some(home) = with_git("an_unborn_head_has_only_the_agents_work")? else { return Ok(()) };
    let project = home.project();
    write(&project.join("mine"), b"mine\n")?;
    write(&project.join("changed"), b"mine\n")?;
    home.git(&["init", "-q"])?;
    start(&home)?;
    let names =
        || -> Result<String> { Ok(run(&home, &["diff", "one", "--name-only"])?.expect_code(0).stdout) };
    inside(&home, "echo a >committed; git add -A; git commit -qm agent; echo b >later; echo b >>changed")?;
    assert_eq!(names()?, "changed\ncommitted\nlater\n");
    let _ = run(&home, &PULL)?.expect_code(0);
    let shown = home.git(&["show", "--name-only", "--format=", "bottle/one"])?;
    assert_eq!(shown, "changed\nlater\n");
    let _ = run(&home, &["apply", "one", "--yes"])?.expect_code(0);
    assert_eq!(fs::read_to_string(project.join("changed"))?, "mine\nb\n");
    assert_eq!(tree(&project)?.len(), 4);
    Ok(())
}

/// A fork knows which files its original bottle was given.
#[test]
fn a_fork_has_only_the_agents_work() -> Result<()> {
    let Some(home) = with_git("a_fork_has_only_the_agents_work")? else { return Ok(()) };
    write(&home.project().join("code"), b"one\n")?;
    home.git(&["init", "-q"])?;
    commit(&home)?;
    write(&home.project().join("untracked"), b"mine\n")?;
    start(&home)?;
    inside(&home, "echo two >>code")?;
    let _ = run(&home, &["fork", "one", "--label", "two", "--detach", "-y", "-q"])?.expect_code(0);
    assert_eq!(run(&home, &["diff", "two", "--name-only"])?.expect_code(0).stdout, "code\n");
    Ok(())
}

/// A random repository: files with their content, whether they are tracked, whether the user changed them later, and
/// lines of attribute and ignore files.
#[derive(Debug, Clone)]
struct Random {
    files: BTreeMap<String, (usize, bool, bool)>,
    attributes: Vec<String>,
    ignored: Vec<String>,
    autocrlf: &'static str,
}

const CONTENTS: [&[u8]; 7] =
    [b"", b"a\nb\n", b"a\r\nb\r\n", b"a\r\nb\n", b"$Id$\r\n", b"x\0y\r\n", b"$Id: foreign $\nlong text\n"];

fn random() -> impl Strategy<Value = Random> {
    let name = prop::sample::select(vec![
        "a.txt",
        "b.txt",
        "c.bin",
        "d",
        "sub/a.txt",
        "sub/e",
        "sub/deep/f.log",
        "g.log",
    ]);
    let file = (0..CONTENTS.len(), any::<bool>(), any::<bool>());
    let patterns = ["*", "*.txt", "sub/**", "/d", "*.log", "deep"];
    let values =
        ["text", "-text", "text=auto", "eol=crlf", "text eol=lf", "ident", "binary", "!text", "filter=none"];
    let attribute = (prop::sample::select(patterns.to_vec()), prop::sample::select(values.to_vec()))
        .prop_map(|(pattern, value)| format!("{pattern} {value}"));
    let ignored = prop::sample::select(vec!["*.log", "sub/", "!*.txt", "/d", "deep"]).prop_map(str::to_owned);
    let autocrlf = prop::sample::select(vec!["false", "true", "input"]);
    (
        prop::collection::btree_map(name.prop_map(str::to_owned), file, 1..7),
        prop::collection::vec(attribute, 0..5),
        prop::collection::vec(ignored, 0..3),
        autocrlf,
    )
        .prop_map(|(files, attributes, ignored, autocrlf)| Random {
            files,
            attributes,
            ignored,
            autocrlf,
        })
}

/// Checks that `bottle` finds no work in an unchanged bottle of a random repository.
fn nothing_comes_out(home: &TestHome, random: &Random) -> Result<()> {
    let checked = unchanged(home, random);
    // A case that fails does not remove its bottle.
    let _ = run(home, &["stop", "one", "--time", "0", "-q"])?;
    let _ = run(home, &["discard", "one", "--yes", "-q"])?;
    checked
}

fn unchanged(home: &TestHome, random: &Random) -> Result<()> {
    let project = home.project();
    let _ = fs::remove_dir_all(&project);
    fs::create_dir_all(&project)?;
    write(&project.join(".gitattributes"), random.attributes.join("\n").as_bytes())?;
    write(&project.join(".gitignore"), random.ignored.join("\n").as_bytes())?;
    home.git(&["init", "-q"])?;
    home.git(&["config", "core.autocrlf", random.autocrlf])?;
    home.git(&["config", "core.safecrlf", "false"])?;
    home.git(&["add", ".gitattributes"])?;
    for (name, (content, is_tracked, _)) in &random.files {
        write(&project.join(name), CONTENTS[*content])?;
        if *is_tracked {
            home.git(&["add", "-f", "--", name])?;
        }
    }
    home.git(&["commit", "-qm", "begin"])?;
    for (name, (content, _, is_changed)) in &random.files {
        match (is_changed, content) {
            (false, _) => {}
            (true, 0) => fs::remove_file(project.join(name))?,
            (true, content) => write(&project.join(name), CONTENTS[(content + 1) % CONTENTS.len()])?,
        }
    }
    let before = (tree(&project)?, home.git(&["status", "--porcelain", "--ignored"])?);
    start(home)?;
    let diff = run(home, &["diff", "one"])?;
    ensure!(diff.code == 0 && diff.stdout.is_empty(), "a diff: {}{}", diff.stdout, diff.stderr);
    let pulled = run(home, &PULL)?;
    ensure!(pulled.code == 0, "no pull: {}", pulled.stderr);
    ensure!(home.git(&["rev-parse", "bottle/one"])? == home.git(&["rev-parse", "HEAD"])?, "a commit");
    let applied = run(home, &["apply", "one", "--yes"])?;
    ensure!(applied.code == 0 && applied.stdout.is_empty(), "applied: {}{}", applied.stdout, applied.stderr);
    home.git(&["branch", "-D", "bottle/one"])?;
    ensure!(before == (tree(&project)?, home.git(&["status", "--porcelain", "--ignored"])?), "a change");
    Ok(())
}

/// Git treats a file as unchanged if the user only wrote a text into `$Id: …$`.
#[test]
fn a_text_of_the_user_that_git_hides_is_no_work() -> Result<()> {
    let Some(home) = with_git("a_text_of_the_user_that_git_hides_is_no_work")? else { return Ok(()) };
    for autocrlf in ["false", "input"] {
        let random = Random {
            files: BTreeMap::from([("d".to_owned(), (6, true, false))]),
            attributes: vec!["* ident".to_owned()],
            ignored: Vec::new(),
            autocrlf,
        };
        nothing_comes_out(&home, &random)?;
    }
    Ok(())
}

#[test]
fn nothing_comes_out_of_an_unchanged_bottle() -> Result<()> {
    let Some(home) = with_git("nothing_comes_out_of_an_unchanged_bottle")? else { return Ok(()) };
    let config = Config { cases: 12, max_shrink_iters: 8, failure_persistence: None, ..Config::default() };
    let checked = TestRunner::new(config).run(&random(), |random| {
        nothing_comes_out(&home, &random).map_err(|error| TestCaseError::fail(format!("{error:#}")))
    });
    checked.map_err(|error| anyhow::anyhow!("{error}"))
}
