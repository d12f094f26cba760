//! Tests that applying the patch of a comparison to the first tree gives the second tree.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use bottle_host::Host;
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::scratch::{Content, FILES, Form, Scratch};
use bottle_repository::fast_import::quoted;

const START: &str = "refs/heads/start";

/// The mode and content of each file, by path.
type Tree = BTreeMap<String, (&'static str, Vec<u8>)>;

pub(super) fn host(home: &Path) -> Host {
    Host {
        env: std::env::vars_os().collect(),
        cwd: home.to_owned(),
        home: home.join(".bottle"),
        user_home: home.to_owned(),
        runtime: home.join("run"),
        program: "/bin/bottle".into(),
    }
}

/// Imports a tree as a commit.
pub(super) fn commit(scratch: &Scratch<'_>, reference: &str, tree: &Tree) {
    let mut git = scratch.store.git().command();
    let mut git = git.args(["fast-import", "--quiet"]).stdin(Stdio::piped()).spawn().expect("git");
    let mut input = format!("commit {reference}\ncommitter a <> 0 +0000\ndata 0\n").into_bytes();
    for (path, (mode, content)) in tree {
        input.extend(format!("M {mode} inline ").bytes());
        input.extend(quoted(path.as_bytes()));
        input.extend(format!("\ndata {}\n", content.len()).bytes());
        input.extend(content);
        input.push(b'\n');
    }
    git.stdin.take().expect("input").write_all(&input).expect("written");
    assert!(git.wait().expect("git").success(), "{reference}");
}

fn git(directory: &Path, arguments: &[&str], input: &[u8]) -> String {
    let mut git = Command::new("git");
    git.arg("-C").arg(directory).args(arguments).env("GIT_CONFIG_GLOBAL", "/dev/null");
    git.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut git = git.spawn().expect("git");
    git.stdin.take().expect("input").write_all(input).expect("written");
    let output = git.wait_with_output().expect("git");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

fn tree() -> impl Strategy<Value = Tree> {
    // The name of a file can be a directory in another file's name, so that a file can become a directory.
    let name =
        prop::sample::select(vec!["a", "b b", "-c", "ü\"\\", "tab\tx", "line\nx", " ", "a/x", "deep/er/f"]);
    let text = prop_oneof![
        vec(prop::sample::select(vec!["one", "two", "", "\r", "+x", "-- ", "\\ No newline"]), 0..12)
            .prop_map(|lines| lines.join("\n").into_bytes()),
        vec(any::<u8>(), 0..300),
    ];
    let file =
        (prop::sample::select(vec!["100644", "100755", "120000"]), text).prop_map(|(mode, mut text)| {
            if mode == "120000" {
                text.retain(|byte| *byte != 0);
                // `git apply` follows a link that is at the path of a directory, and fails if the link's target is too
                // long for a file name.
                text.truncate(200);
                text.push(b'x');
            }
            (mode, text)
        });
    btree_map(name, file, 0..7).prop_map(|files| {
        let is_directory = |name: &str| files.keys().any(|other| other.starts_with(&format!("{name}/")));
        let files = files.iter().filter(|(name, _)| !is_directory(name));
        files.map(|(name, file)| ((*name).to_owned(), file.clone())).collect()
    })
}

/// Compares two trees, and applies the patch to a checkout of the first tree.
async fn round_trip(start: &Tree, end: &Tree) {
    let home = tempfile::tempdir().expect("directory");
    let host = host(home.path());
    let scratch = Scratch::create(&host, None, None).expect("a repository");
    commit(&scratch, START, start);
    commit(&scratch, FILES, end);
    let content = scratch.content(Form::Patch, ["--src-prefix=a/", "--dst-prefix=b/"], START, FILES).await;
    let Content::File(mut patch) = content.expect("a patch") else { panic!("no file") };
    let mut bytes = Vec::new();
    std::io::copy(&mut patch, &mut bytes).expect("read");
    let checkout = home.path().join("checkout");
    let source = scratch.store.path().to_str().expect("UTF-8");
    git(home.path(), &["init", "-q", "checkout"], b"");
    git(
        &checkout,
        &["fetch", "-q", source, &format!("{START}:refs/start"), &format!("{FILES}:refs/end")],
        b"",
    );
    git(&checkout, &["reset", "-q", "--hard", "refs/start"], b"");
    if !bytes.is_empty() {
        git(&checkout, &["apply", "--whitespace=nowarn", "-"], &bytes);
    }
    git(&checkout, &["add", "-A"], b"");
    let wanted = git(&checkout, &["rev-parse", "refs/end^{tree}"], b"");
    assert_eq!(git(&checkout, &["write-tree"], b""), wanted, "{}", String::from_utf8_lossy(&bytes));
}

#[test]
fn the_patch_of_a_comparison_gives_its_result() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let config = Config { cases: 24, failure_persistence: None, ..Config::default() };
    TestRunner::new(config)
        .run(&(tree(), tree()), |(start, end)| {
            runtime.block_on(round_trip(&start, &end));
            Ok(())
        })
        .expect("each patch applies");
}
