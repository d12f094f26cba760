//! Tests snapshots of hostile files, on backends that copy the agent's files into a snapshot.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bottle_backend::{NewSnapshot, Origin, ProgressSink};

use crate::fixture::{Bottle, Fixture, close, every_isolating_backend, replacing, run};

/// The directory of a bottle's only snapshot, on backends that store snapshots in the home.
fn stored(fixture: &Fixture, bottle: &Bottle<'_>) -> PathBuf {
    let own = fixture.host.home.join("snapshots").join(bottle.slug().as_str());
    let all: Vec<_> = std::fs::read_dir(&own).expect("snapshots").map(|e| e.expect("one").path()).collect();
    assert_eq!(all.len(), 1, "{all:?}");
    all[0].clone()
}

async fn fixtures() -> Vec<Fixture> {
    let mut fixtures = every_isolating_backend().await;
    fixtures.retain(|fixture| fixture.name() == "linux");
    fixtures
}

/// The name of the directory that contains the agent's home, in a bottle's layers and in its snapshots.
fn home_of(fixture: &Fixture) -> &'static str {
    if fixture.is_in_image() { "upper/home/agent" } else { "home" }
}

/// The directory of a running bottle's files.
fn layers(fixture: &Fixture, bottle: &Bottle<'_>) -> PathBuf {
    fixture.backend.kept_workspace(bottle.slug()).expect("a directory").with_file_name("")
}

async fn shell(bottle: &Bottle<'_>, script: &str) -> String {
    bottle.once(&["/bin/sh", "-c", script]).await.expect("ran").0
}

/// A script that prints, for each file in the home, the attributes that a snapshot preserves, except extended
/// attributes.
const DESCRIBE: &str = "cd /home/agent && find . -mindepth 1 \\( -type d -prune -o -true \\) -printf '' ; \
    for f in $(ls -A | sort); do stat -c '%n %F %a %s %Y %N' \"$f\"; done; \
    [ one -ef two ] && echo linked; [ one -ef same ] || echo apart; \
    cat closed 2>/dev/null; chmod 600 closed; cat closed; chmod 700 shut; cat shut/in/file; stat -c %a shut/in";

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_preserves_file_content_and_attributes() {
    for fixture in fixtures().await {
        let bottle = fixture.bottle("faithful").await;
        bottle
            .shell(
                "cd /home/agent; echo 1 >one; ln one two; cp one same; ln -s /etc/passwd link; ln -s nowhere dangling; \
                 mkfifo pipe; chmod 640 pipe; echo secret >closed; mkdir -p shut/in; echo f >shut/in/file; chmod 750 shut/in; \
                 touch -d 2001-02-03 one; printf x >sticky; chmod 1751 sticky; truncate -s 3G sparse; echo end >>sparse; \
                 chmod 0 closed shut; mkdir empty; chmod 555 empty; \
                 python3 -c 'import os; os.setxattr(\"one\", \"user.note\", b\"kept\")' 2>/dev/null; \
                 python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"socket\")' 2>/dev/null; rm -f socket",
            )
            .await;
        let one = bottle.make_snapshot(None).await;
        let two = bottle.make_snapshot(Some(&one)).await;
        let described = shell(&bottle, DESCRIBE).await;
        assert!(described.contains("linked\napart\n"), "{described}");
        let attribute =
            shell(&bottle, "python3 -c 'import os; print(os.getxattr(\"/home/agent/one\", \"user.note\"))'")
                .await;
        bottle.remove().await;
        for snapshot in [one, two] {
            let again = fixture.bottle_from("faithful", Origin::Snapshot(snapshot)).await;
            close(again.provisioned().await).await;
            assert_eq!(shell(&again, DESCRIBE).await, described, "{}", fixture.name());
            let read = shell(
                &again,
                "python3 -c 'import os; print(os.getxattr(\"/home/agent/one\", \"user.note\"))'",
            )
            .await;
            assert_eq!(read, attribute, "{}", fixture.name());
            let blocks = shell(&again, "stat -c %b /home/agent/sparse").await;
            assert!(blocks.trim().parse::<u64>().expect("blocks") < 1000, "{}: {blocks}", fixture.name());
            again.remove().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn snapshots_share_only_unchanged_files() {
    for fixture in fixtures().await {
        let bottle = fixture.bottle("shared").await;
        bottle.shell("cd /home/agent; echo same >same; echo one >changed; echo one >times; mkdir d; echo x >d/moved").await;
        // The clock for the timestamps of files ticks every few milliseconds. A timestamp from the same tick as a
        // change is not used to detect unchanged files.
        tokio::time::sleep(std::time::Duration::from_millis(30)).await;
        let one = bottle.make_snapshot(None).await;
        // A changed file with a forged modification time and the same size is not treated as unchanged.
        shell(&bottle, "cd /home/agent; cp -p times t; echo two >changed; printf 'two\\n' >times; touch -r t times; mv d/moved d/other").await;
        let two = bottle.make_snapshot(Some(&one)).await;
        let at = |reference: &str, name: &str| {
            let path =
                fixture.host.home.join("snapshots/shared").join(reference).join(home_of(&fixture)).join(name);
            std::fs::metadata(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        };
        let inode = |reference: &str, name: &str| at(reference, name).ino();
        assert_eq!(inode(&one.reference, "same"), inode(&two.reference, "same"), "{}", fixture.name());
        for name in ["changed", "times"] {
            assert_ne!(inode(&one.reference, name), inode(&two.reference, name), "{} {name}", fixture.name());
            let path = fixture
                .host
                .home
                .join("snapshots/shared")
                .join(&two.reference)
                .join(home_of(&fixture))
                .join(name);
            assert_eq!(std::fs::read_to_string(path).expect("read"), "two\n", "{} {name}", fixture.name());
        }
        assert!(at(&two.reference, "d/other").is_file());
        // A file in the layers never shares an inode with a stored file.
        let live = layers(&fixture, &bottle).join(home_of(&fixture)).join("same");
        assert_ne!(std::fs::metadata(live).expect("there").ino(), inode(&one.reference, "same"));

        // A restored file is treated as unchanged, so the next snapshot links it instead of copying it.
        bottle.remove().await;
        let again = fixture.bottle_from("shared", Origin::Snapshot(two.clone())).await;
        tokio::time::sleep(std::time::Duration::from_millis(30)).await;
        let three = again.make_snapshot(Some(&two)).await;
        assert_eq!(inode(&three.reference, "same"), inode(&two.reference, "same"), "{}", fixture.name());
        again.remove().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_freeze_follows_no_link_to_the_host() {
    for fixture in fixtures().await {
        let secret = fixture.host.user_home.join("secret");
        std::fs::create_dir_all(&fixture.host.user_home).expect("made");
        std::fs::write(&secret, "a secret of the host").expect("written");
        let bottle = fixture.bottle("links").await;
        bottle
            .shell(&format!(
                "cd /workspace; ln -s {0} file; ln -s {1} directory; ln -s / root; ln -s ../../../.. up; mkdir a; ln -s ../directory a/b",
                secret.display(),
                fixture.host.user_home.display()
            ))
            .await;
        bottle.make_snapshot(None).await;
        let stored = stored(&fixture, &bottle).join("workspace");
        for name in ["file", "directory", "root", "up", "a/b"] {
            assert!(stored.join(name).symlink_metadata().expect("there").is_symlink(), "{name}");
        }
        bottle.remove().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_too_deep_tree_is_reported_and_leaves_nothing() {
    for fixture in fixtures().await {
        let bottle = fixture.bottle("deep").await;
        bottle.shell("i=0; while [ $i -lt 300 ]; do mkdir deeper; cd deeper; i=$((i+1)); done").await;
        let error = fixture
            .backend
            .make_snapshot(bottle.slug(), &NewSnapshot::default(), ProgressSink::discard())
            .await
            .expect_err("too deep");
        assert!(
            error.one_line().contains("more than 128 directories deep") && error.one_line().len() < 400,
            "{error}"
        );
        assert!(
            error.hint.is_some_and(|hint| hint.contains("bottle exec deep -- rm -r")),
            "{}",
            fixture.name()
        );
        assert_eq!(fixture.backend.snapshots().await.expect("listed"), [], "{}", fixture.name());
        assert!(bottle.found().await.iter().all(|found| found.kind != "snapshot-rest"), "{}", fixture.name());
        bottle.remove().await;
    }
}

/// A script that descends through directories with names of maximum length and runs `then` in each directory.
fn deepest(then: &str) -> String {
    format!(
        "import os\nos.chdir('/workspace')\nfor _ in range(120):\n  n = 'x' * 255\n  {then}\n  os.chdir(n)\n"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_freeze_copies_the_longest_names_at_every_depth() {
    if !Path::new("/usr/bin/python3").exists() {
        return bottle_test_support::skip::aloud("long names", &"there is no /usr/bin/python3");
    }
    for fixture in fixtures().await {
        let bottle = fixture.bottle("long").await;
        let channel = bottle.provisioned().await;
        let make = "os.path.exists(n) or os.mkdir(n)";
        let more = "open('first', 'w').write('deep'); os.link('first', 'y' * 255)\n";
        let script = format!("{}{more}", deepest(make));
        let (said, _) = run(&channel, &["/usr/bin/python3", "-c", &script]).await.expect("ran");
        assert_eq!(said, "", "{}", fixture.name());
        let one = bottle.make_snapshot(None).await;
        let two = bottle.make_snapshot(Some(&one)).await;
        bottle.remove().await;
        let again = fixture.bottle_from("long", Origin::Snapshot(two)).await;
        let channel = again.provisioned().await;
        let script = format!("{}print(open('first').read(), open('y' * 255).read())\n", deepest("pass"));
        let (said, _) = run(&channel, &["/usr/bin/python3", "-c", &script]).await.expect("ran");
        assert_eq!(said, "deep deep\n", "{}", fixture.name());
        again.remove().await;
    }
}

/// A script that endlessly exchanges directories and files with links that point outside.
const EXCHANGES: &str = "import ctypes, os, sys\n\
    libc, out = ctypes.CDLL(None), sys.argv[1]\n\
    os.makedirs('d/sub/sub'); os.symlink(out, 'l'); os.symlink(out, 'd/l')\n\
    for path in ['d/secret', 'd/sub/secret', 'd/sub/sub/secret', 'f']: open(path, 'w').write('mine')\n\
    os.symlink(out + '/secret', 'g')\n\
    open('ready', 'w').write('x')\n\
    pairs = [(a.encode(), b.encode()) for a, b in [('d', 'l'), ('f', 'g'), ('d/sub', 'd/l'), ('d/sub/sub', 'd/l')]]\n\
    while True:\n\
    \x20 for one, other in pairs: libc.renameat2(-100, one, -100, other, 2)\n";

#[tokio::test(flavor = "multi_thread")]
async fn swapping_directories_and_links_does_not_escape_the_tree() {
    if !Path::new("/usr/bin/python3").exists() {
        return bottle_test_support::skip::aloud("exchanges", &"there is no /usr/bin/python3");
    }
    for fixture in fixtures().await {
        let private = fixture.host.user_home.join("private");
        std::fs::create_dir_all(&private).expect("made");
        std::fs::write(private.join("secret"), "a secret of the host").expect("written");
        std::fs::write(private.join("beside"), "a secret of the host").expect("written");
        for (place, tree) in [("/workspace", "workspace"), ("/home/agent", home_of(&fixture))] {
            let slug = if tree == "workspace" { "swaps" } else { "trades" };
            let bottle = fixture.bottle(slug).await;
            let channel = bottle.provisioned().await;
            let script = format!("cd {place} && exec python3 -c \"$0\" {}", private.display());
            let swaps =
                tokio::spawn(
                    async move { run(&channel, &["/bin/sh", "-c", &script, EXCHANGES]).await.map(drop) },
                );
            let ready = layers(&fixture, &bottle).join(tree).join("ready");
            while std::fs::read(&ready).unwrap_or_default().is_empty() {
                assert!(!swaps.is_finished(), "{}: it goes on", fixture.name());
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
            let mut previous = None;
            for _ in 0..30 {
                let frozen = fixture
                    .backend
                    .make_snapshot(bottle.slug(), &replacing(previous.as_ref()), ProgressSink::discard())
                    .await;
                let snapshot = frozen.expect("frozen").snapshot;
                let stored =
                    fixture.host.home.join("snapshots").join(slug).join(&snapshot.reference).join(tree);
                assert_only_its_own(&stored);
                previous = Some(snapshot);
            }
            bottle.remove().await;
            swaps.abort();
        }
        assert_eq!(std::fs::read_to_string(private.join("secret")).expect("there"), "a secret of the host");
    }
}

/// Asserts that a stored tree contains no file of the user.
fn assert_only_its_own(directory: &Path) {
    for entry in entries(directory) {
        let kind = entry.file_type().expect("kind");
        assert_ne!(entry.file_name(), "beside", "{}", directory.display());
        if kind.is_dir() {
            assert_only_its_own(&entry.path());
        } else if kind.is_file() {
            let text = std::fs::read(entry.path()).expect("read");
            assert!(!text.starts_with(b"a secret"), "{}", entry.path().display());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn freezes_a_tree_that_keeps_changing() {
    for fixture in fixtures().await {
        let bottle = fixture.bottle("busy").await;
        let channel = bottle.provisioned().await;
        let script = "cd /home/agent; mkdir -p a b; echo kept >kept; while :; do for i in 1 2 3 4 5 6 7 8; do \
            mkdir -p a/$i; echo $i >a/$i/f; ln -sfn / a/l$i; mv a/$i b/$i$i; rm -rf a/$i b/$i$i; \
            rm -f a/l$i; mkdir a/l$i; rmdir a/l$i; echo more >>log; done; done";
        let busy = tokio::spawn(async move { run(&channel, &["/bin/sh", "-c", script]).await.map(drop) });
        let kept = layers(&fixture, &bottle).join(home_of(&fixture)).join("kept");
        while std::fs::read_to_string(&kept).is_ok_and(|text| text != "kept\n") || !kept.exists() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        let mut previous = None;
        for _ in 0..20 {
            let frozen = fixture
                .backend
                .make_snapshot(bottle.slug(), &replacing(previous.as_ref()), ProgressSink::discard())
                .await
                .expect("frozen");
            let own = fixture.host.home.join("snapshots/busy").join(&frozen.snapshot.reference);
            let workspace = own.join(home_of(&fixture));
            assert_eq!(std::fs::read_to_string(workspace.join("kept")).expect("there"), "kept\n");
            assert!(no_more_than(&workspace, 100), "{}", fixture.name());
            previous = Some(frozen.snapshot);
        }
        bottle.remove().await;
        busy.abort();
    }
}

/// The entries of a directory except `.prefix`, in which a directory of the kernel cannot be read.
fn entries(directory: &Path) -> Vec<std::fs::DirEntry> {
    let all = std::fs::read_dir(directory).expect("read").map(|entry| entry.expect("entry"));
    all.filter(|entry| entry.file_name() != ".prefix").collect()
}

/// Whether a tree has at most `most` entries. A tree with the host's files would have more entries.
fn no_more_than(directory: &Path, most: usize) -> bool {
    let entries = entries(directory);
    let directories = entries.iter().filter(|entry| entry.file_type().expect("kind").is_dir());
    entries.len() <= most && directories.into_iter().all(|entry| no_more_than(&entry.path(), most))
}

#[tokio::test(flavor = "multi_thread")]
async fn leftovers_of_a_killed_freeze_are_found_and_removed() {
    for fixture in fixtures().await {
        let bottle = fixture.bottle("rest").await;
        let snapshot = bottle.make_snapshot(None).await;
        let own = fixture.host.home.join("snapshots/rest");
        let left = [own.join(".new-1"), own.join(".old-2"), bottle.state.join(".thaw-agent")];
        for path in &left {
            std::fs::create_dir_all(path.join("home/inner")).expect("made");
        }
        let mut found: Vec<_> =
            bottle.found().await.into_iter().filter(|r| r.kind == "snapshot-rest").collect();
        assert_eq!(found.len(), 3, "{found:?}");
        fixture.backend.remove(&found).await.expect("removed");
        assert!(left.iter().all(|path| !path.exists()));
        found[0].id = own.join(&snapshot.reference).display().to_string();
        assert!(fixture.backend.remove(&found[..1]).await.is_err(), "a whole snapshot is no rest");
        assert_eq!(fixture.backend.snapshots().await.expect("listed"), [snapshot]);
        bottle.remove().await;
    }
}
