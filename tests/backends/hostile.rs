//! What an agent can leave for a freeze to find. On backends whose snapshots are copies of its files.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bottle::backend::{Origin, ProgressSink};

use crate::stand::{Bottle, Stand, every_isolating_backend, run};

/// Where the one snapshot of a bottle has its files, on backends that keep it in the home.
fn stored(stand: &Stand, bottle: &Bottle<'_>) -> PathBuf {
    let own = stand.host.home.join("snapshots").join(bottle.slug().as_str());
    let all: Vec<_> = std::fs::read_dir(&own).expect("snapshots").map(|e| e.expect("one").path()).collect();
    assert_eq!(all.len(), 1, "{all:?}");
    all[0].clone()
}

async fn stands() -> Vec<Stand> {
    let mut stands = every_isolating_backend().await;
    stands.retain(|stand| stand.name() == "linux");
    stands
}

/// Where the files of the agent's home are, among those of a bottle or of a snapshot.
fn home_of(stand: &Stand) -> &'static str {
    if stand.is_in_image() { "upper/home/agent" } else { "home" }
}

/// The living files of a bottle.
fn layers(stand: &Stand, bottle: &Bottle<'_>) -> PathBuf {
    stand.backend.kept_workspace(bottle.slug()).expect("a folder").with_file_name("")
}

async fn shell(bottle: &Bottle<'_>, script: &str) -> String {
    let channel = bottle.connect().await;
    run(&channel, &["/bin/sh", "-c", script]).await.expect("ran").0
}

/// Says everything about the files of the home that has to come through.
const DESCRIBE: &str = "cd /home/agent && find . -mindepth 1 \\( -type d -prune -o -true \\) -printf '' ; \
    for f in $(ls -A | sort); do stat -c '%n %F %a %s %Y %N' \"$f\"; done; \
    [ one -ef two ] && echo linked; [ one -ef same ] || echo apart; \
    cat closed 2>/dev/null; chmod 600 closed; cat closed; chmod 700 shut; cat shut/in/file; stat -c %a shut/in";

#[tokio::test(flavor = "multi_thread")]
async fn everything_about_a_file_comes_through() {
    for stand in stands().await {
        let bottle = stand.bottle("faithful").await;
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
        let one = bottle.freeze(None).await;
        let two = bottle.freeze(Some(&one)).await;
        let described = shell(&bottle, DESCRIBE).await;
        assert!(described.contains("linked\napart\n"), "{described}");
        let attribute =
            shell(&bottle, "python3 -c 'import os; print(os.getxattr(\"/home/agent/one\", \"user.note\"))'")
                .await;
        bottle.remove().await;
        for snapshot in [one, two] {
            let again = stand.bottle_from("faithful", Origin::Snapshot(snapshot)).await;
            again.provisioned().await;
            assert_eq!(shell(&again, DESCRIBE).await, described, "{}", stand.name());
            let read = shell(
                &again,
                "python3 -c 'import os; print(os.getxattr(\"/home/agent/one\", \"user.note\"))'",
            )
            .await;
            assert_eq!(read, attribute, "{}", stand.name());
            let blocks = shell(&again, "stat -c %b /home/agent/sparse").await;
            assert!(blocks.trim().parse::<u64>().expect("blocks") < 1000, "{}: {blocks}", stand.name());
            again.remove().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_did_not_change_is_shared_and_what_did_is_not() {
    for stand in stands().await {
        let bottle = stand.bottle("shared").await;
        bottle.shell("cd /home/agent; echo same >same; echo one >changed; echo one >times; mkdir d; echo x >d/moved").await;
        // The clock of files ticks every few milliseconds; within a tick nothing is believed.
        tokio::time::sleep(std::time::Duration::from_millis(30)).await;
        let one = bottle.freeze(None).await;
        // A forged modification time and the same size do not pass for the same file.
        shell(&bottle, "cd /home/agent; cp -p times t; echo two >changed; printf 'two\\n' >times; touch -r t times; mv d/moved d/other").await;
        let two = bottle.freeze(Some(&one)).await;
        let at = |reference: &str, name: &str| {
            let path =
                stand.host.home.join("snapshots/shared").join(reference).join(home_of(&stand)).join(name);
            std::fs::metadata(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
        };
        let inode = |reference: &str, name: &str| at(reference, name).ino();
        assert_eq!(inode(&one.reference, "same"), inode(&two.reference, "same"), "{}", stand.name());
        for name in ["changed", "times"] {
            assert_ne!(inode(&one.reference, name), inode(&two.reference, name), "{} {name}", stand.name());
            let path = stand
                .host
                .home
                .join("snapshots/shared")
                .join(&two.reference)
                .join(home_of(&stand))
                .join(name);
            assert_eq!(std::fs::read_to_string(path).expect("read"), "two\n", "{} {name}", stand.name());
        }
        assert!(at(&two.reference, "d/other").is_file());
        // The living file is never one of the stored ones.
        let live = layers(&stand, &bottle).join(home_of(&stand)).join("same");
        assert_ne!(std::fs::metadata(live).expect("there").ino(), inode(&one.reference, "same"));

        // Brought to life, it is known to be the same, and not copied by the next freeze.
        bottle.remove().await;
        let again = stand.bottle_from("shared", Origin::Snapshot(two.clone())).await;
        tokio::time::sleep(std::time::Duration::from_millis(30)).await;
        let three = again.freeze(Some(&two)).await;
        assert_eq!(inode(&three.reference, "same"), inode(&two.reference, "same"), "{}", stand.name());
        again.remove().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_of_the_host_is_followed_into() {
    for stand in stands().await {
        let secret = stand.host.user_home.join("secret");
        std::fs::create_dir_all(&stand.host.user_home).expect("made");
        std::fs::write(&secret, "a secret of the host").expect("written");
        let bottle = stand.bottle("links").await;
        bottle
            .shell(&format!(
                "cd /workspace; ln -s {0} file; ln -s {1} folder; ln -s / root; ln -s ../../../.. up; mkdir a; ln -s ../folder a/b",
                secret.display(),
                stand.host.user_home.display()
            ))
            .await;
        bottle.freeze(None).await;
        let stored = stored(&stand, &bottle).join("workspace");
        for name in ["file", "folder", "root", "up", "a/b"] {
            assert!(stored.join(name).symlink_metadata().expect("there").is_symlink(), "{name}");
        }
        bottle.remove().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tree_that_is_too_deep_is_named_and_nothing_is_left() {
    for stand in stands().await {
        let bottle = stand.bottle("deep").await;
        bottle.shell("i=0; while [ $i -lt 300 ]; do mkdir deeper; cd deeper; i=$((i+1)); done").await;
        let error =
            stand.backend.freeze(bottle.slug(), None, ProgressSink::nobody()).await.expect_err("too deep");
        assert!(error.message.contains("more than 128 folders deep") && error.message.len() < 400, "{error}");
        assert!(
            error.hint.is_some_and(|hint| hint.contains("bottle exec deep -- rm -r")),
            "{}",
            stand.name()
        );
        assert_eq!(stand.backend.snapshots().await.expect("listed"), [], "{}", stand.name());
        assert!(bottle.found().await.iter().all(|found| found.kind != "snapshot-rest"), "{}", stand.name());
        bottle.remove().await;
    }
}

/// Goes down as many folders with names as long as may be, and says what is in the last one.
fn deepest(then: &str) -> String {
    format!(
        "import os\nos.chdir('/workspace')\nfor _ in range(120):\n  n = 'x' * 255\n  {then}\n  os.chdir(n)\n"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn names_may_be_as_long_as_they_can_be_all_the_way_down() {
    if !Path::new("/usr/bin/python3").exists() {
        return bottle_test_support::skip::aloud("long names", &"there is no /usr/bin/python3");
    }
    for stand in stands().await {
        let bottle = stand.bottle("long").await;
        let channel = bottle.provisioned().await;
        let make = "os.path.exists(n) or os.mkdir(n)";
        let more = "open('first', 'w').write('deep'); os.link('first', 'y' * 255)\n";
        let script = format!("{}{more}", deepest(make));
        let (said, _) = run(&channel, &["/usr/bin/python3", "-c", &script]).await.expect("ran");
        assert_eq!(said, "", "{}", stand.name());
        let one = bottle.freeze(None).await;
        let two = bottle.freeze(Some(&one)).await;
        bottle.remove().await;
        let again = stand.bottle_from("long", Origin::Snapshot(two)).await;
        let channel = again.provisioned().await;
        let script = format!("{}print(open('first').read(), open('y' * 255).read())\n", deepest("pass"));
        let (said, _) = run(&channel, &["/usr/bin/python3", "-c", &script]).await.expect("ran");
        assert_eq!(said, "deep deep\n", "{}", stand.name());
        again.remove().await;
    }
}

/// Puts folders, files and links that lead out in each other's places, at once and without an end.
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
async fn folders_and_links_that_take_each_others_places_lead_nowhere() {
    if !Path::new("/usr/bin/python3").exists() {
        return bottle_test_support::skip::aloud("exchanges", &"there is no /usr/bin/python3");
    }
    for stand in stands().await {
        let private = stand.host.user_home.join("private");
        std::fs::create_dir_all(&private).expect("made");
        std::fs::write(private.join("secret"), "a secret of the host").expect("written");
        std::fs::write(private.join("beside"), "a secret of the host").expect("written");
        for (place, tree) in [("/workspace", "workspace"), ("/home/agent", home_of(&stand))] {
            let slug = if tree == "workspace" { "swaps" } else { "trades" };
            let bottle = stand.bottle(slug).await;
            let channel = bottle.provisioned().await;
            let script = format!("cd {place} && exec python3 -c \"$0\" {}", private.display());
            let swaps =
                tokio::spawn(
                    async move { run(&channel, &["/bin/sh", "-c", &script, EXCHANGES]).await.map(drop) },
                );
            let ready = layers(&stand, &bottle).join(tree).join("ready");
            while std::fs::read(&ready).unwrap_or_default().is_empty() {
                assert!(!swaps.is_finished(), "{}: it goes on", stand.name());
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
            let mut previous = None;
            for _ in 0..30 {
                let frozen =
                    stand.backend.freeze(bottle.slug(), previous.as_ref(), ProgressSink::nobody()).await;
                let snapshot = frozen.expect("frozen").snapshot;
                let stored =
                    stand.host.home.join("snapshots").join(slug).join(&snapshot.reference).join(tree);
                assert_only_its_own(&stored);
                previous = Some(snapshot);
            }
            bottle.remove().await;
            swaps.abort();
        }
        assert_eq!(std::fs::read_to_string(private.join("secret")).expect("there"), "a secret of the host");
    }
}

/// That nothing of the user's is in a stored tree.
fn assert_only_its_own(folder: &Path) {
    for entry in entries(folder) {
        let kind = entry.file_type().expect("kind");
        assert_ne!(entry.file_name(), "beside", "{}", folder.display());
        if kind.is_dir() {
            assert_only_its_own(&entry.path());
        } else if kind.is_file() {
            let text = std::fs::read(entry.path()).expect("read");
            assert!(!text.starts_with(b"a secret"), "{}", entry.path().display());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tree_that_changes_all_the_time_is_frozen_all_the_same() {
    for stand in stands().await {
        let bottle = stand.bottle("busy").await;
        let channel = bottle.provisioned().await;
        let script = "cd /home/agent; mkdir -p a b; echo kept >kept; while :; do for i in 1 2 3 4 5 6 7 8; do \
            mkdir -p a/$i; echo $i >a/$i/f; ln -sfn / a/l$i; mv a/$i b/$i$i; rm -rf a/$i b/$i$i; \
            rm -f a/l$i; mkdir a/l$i; rmdir a/l$i; echo more >>log; done; done";
        let busy = tokio::spawn(async move { run(&channel, &["/bin/sh", "-c", script]).await.map(drop) });
        let kept = layers(&stand, &bottle).join(home_of(&stand)).join("kept");
        while std::fs::read_to_string(&kept).is_ok_and(|text| text != "kept\n") || !kept.exists() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        let mut previous = None;
        for _ in 0..20 {
            let frozen = stand
                .backend
                .freeze(bottle.slug(), previous.as_ref(), ProgressSink::nobody())
                .await
                .expect("frozen");
            let own = stand.host.home.join("snapshots/busy").join(&frozen.snapshot.reference);
            let workspace = own.join(home_of(&stand));
            assert_eq!(std::fs::read_to_string(workspace.join("kept")).expect("there"), "kept\n");
            assert!(no_more_than(&workspace, 100), "{}", stand.name());
            previous = Some(frozen.snapshot);
        }
        bottle.remove().await;
        busy.abort();
    }
}

/// What is in a folder, but where its prefix is kept: a part of that is the kernel's, and shut.
fn entries(folder: &Path) -> Vec<std::fs::DirEntry> {
    let all = std::fs::read_dir(folder).expect("read").map(|entry| entry.expect("entry"));
    all.filter(|entry| entry.file_name() != ".prefix").collect()
}

/// Whether a tree has no more entries than this: the host's files would be many.
fn no_more_than(folder: &Path, most: usize) -> bool {
    let entries = entries(folder);
    let folders = entries.iter().filter(|entry| entry.file_type().expect("kind").is_dir());
    entries.len() <= most && folders.into_iter().all(|entry| no_more_than(&entry.path(), most))
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_freeze_left_is_found_and_removed() {
    for stand in stands().await {
        let bottle = stand.bottle("rest").await;
        let snapshot = bottle.freeze(None).await;
        let own = stand.host.home.join("snapshots/rest");
        let left = [own.join(".new-1"), own.join(".old-2"), bottle.state.join(".thaw-agent")];
        for path in &left {
            std::fs::create_dir_all(path.join("home/inner")).expect("made");
        }
        let mut found: Vec<_> =
            bottle.found().await.into_iter().filter(|r| r.kind == "snapshot-rest").collect();
        assert_eq!(found.len(), 3, "{found:?}");
        stand.backend.remove(&found).await.expect("removed");
        assert!(left.iter().all(|path| !path.exists()));
        found[0].id = own.join(&snapshot.reference).display().to_string();
        assert!(stand.backend.remove(&found[..1]).await.is_err(), "a whole snapshot is no rest");
        assert_eq!(stand.backend.snapshots().await.expect("listed"), [snapshot]);
        bottle.remove().await;
    }
}
